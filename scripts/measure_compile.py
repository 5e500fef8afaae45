#!/usr/bin/env python3
"""Compare dispatch-compile and dispatch-autograd with what programs say of themselves.

Writes docs/measurements/compile-compared.md.

Each release is installed into a folder of its own, compared, and removed; one takes 3 GB and some minutes. Run it from
the development environment (scripts/test makes it): .venv/bin/python scripts/measure_compile.py 2.6.0 2.15.0
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib"), str(ROOT / "tests")]

import each_release  # noqa: E402

from gdbext.torch.compile.dynamo_names import COMPARED  # noqa: E402
from support.programs import harness  # noqa: E402
from support.truth import autograd_truth, compile_truth  # noqa: E402

PAGE = ROOT / "docs" / "measurements" / "compile-compared.md"
_HEAD = f"""# dispatch-compile and dispatch-autograd, compared with what the programs record

`scripts/measure_compile.py` writes this page. It starts {len(compile_truth.PROGRAMS)} programs
(tests/inferiors/compile_programs.py) that log what torch.compile recorded in them. It then compares each fact with
the report of dispatch-compile on the process and on its core. The facts are counters, reasons for graph breaks and
recompilations, failed guards, errors, compilations, compiled code, and options that differ from their defaults. For a
release that is not listed, dispatch-compile reports "unknown".

The programs use Inductor with g++ (forward and backward) and the backends eager and aot_eager. Some have graph
breaks, too many recompilations, errors or many options. In some of them compilation is disabled.

For dispatch-autograd, twenty threads are each at a different point of a backward pass (tests/inferiors/autograd.py).
The name, sequence number and forward operator of the running node are compared with `grad_fn.name()`,
`_sequence_nr()` and the profiler.

"""
_COLUMNS = ("torch", "CPython", "programs equal", "cores equal", "nodes right", "nodes wrong")


def main() -> int:
    """Exit status 0: everything that was compared is equal."""
    return each_release.run(__doc__, PAGE, _HEAD, _COLUMNS, _compare)


def _compare(version: str, python: str) -> tuple[list[str], list[str]]:
    """One release. Raises HarnessError."""
    equal, cores, problems = 0, 0, []
    for program in compile_truth.PROGRAMS:
        with compile_truth.started(program, python) as process:
            live, core = (compile_truth.compare(program, process, core=core) for core in (False, True))
            equal, cores = equal + (not live), cores + (not core)
            problems += [
                f"{program}: {name}: {ours} instead of {theirs}" for name, (ours, theirs) in {**core, **live}.items()
            ]
    facts = process.truth["said"]
    with harness.started("autograd", python=python) as process:
        right, wrong = autograd_truth.count(process)
    number = len(compile_truth.PROGRAMS)
    row = [
        version,
        facts["python"],
        f"{equal} of {number}",
        f"{cores} of {number}",
        f"{right} of {autograd_truth.POSITIONS}",
        str(wrong),
    ]
    if wrong:
        problems.append(f"{wrong} nodes are wrong")
    if not problems:
        _note(version)
    return row, problems


def _note(version: str) -> None:
    """Everything was equal: dispatch-compile knows this release from now on."""
    data = Path(COMPARED)
    known = {*json.loads(data.read_text()), version}
    data.write_text(json.dumps(sorted(known, key=lambda each: [int(part) for part in each.split(".")])) + "\n")


if __name__ == "__main__":
    sys.exit(main())
