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

Made by `scripts/measure_compile.py`. {len(compile_truth.PROGRAMS)} programs (tests/inferiors/compile_programs.py) log
what torch.compile recorded in them: its counters, the reasons of graph breaks and of recompilations, guards that
failed, errors, compilations, compiled code, and the options of torch._dynamo.config and torch._inductor.config that
differ from their defaults. They are compiled by Inductor with g++, forward and backward, by the backends eager and
aot_eager, with graph breaks, with recompilations beyond the limit, with errors that are suppressed and with errors that
are not, with all kinds of options, in threads that compile, and not at all (disabled by an option, by the environment).
"equal": each of these facts, in the running process and in its core. For a release that is not
listed, dispatch-compile reports "unknown".

Nodes: twenty threads, each at a different point of a backward pass (tests/inferiors/autograd.py); name, sequence
number and forward operator of the running node against `grad_fn.name()`, `_sequence_nr()` and the profiler. "wrong":
reported but false; what was not found is reported as unknown.

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
