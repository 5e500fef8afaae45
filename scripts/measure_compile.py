#!/usr/bin/env python3
"""Compare dispatch-compile and dispatch-autograd with what programs say of themselves: docs/compile-compared.md.

Each release is installed into a folder of its own, compared, and removed; one takes 3 GB and some minutes. Run it from
the development environment (scripts/test makes it): .venv/bin/python scripts/measure_compile.py 2.6.0 2.15.0
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib"), str(ROOT / "tests" / "support")]

import autograd_truth  # noqa: E402 - the tests' folder is on the path from here on
import compile_truth  # noqa: E402
import harness  # noqa: E402
import installed_torch  # noqa: E402
import pythons  # noqa: E402
import release_page  # noqa: E402

from gdbext.errors import GdbextError  # noqa: E402
from gdbext.torch.compile.dynamo_names import is_known  # noqa: E402

PAGE = ROOT / "docs" / "compile-compared.md"
_HEAD = f"""# dispatch-compile and dispatch-autograd, compared with what programs say of themselves

Made by `scripts/measure_compile.py`. {len(compile_truth.PROGRAMS)} programs (tests/inferiors/compile_programs.py) write
down what torch.compile recorded in them: its counters, the reasons of graph breaks and of recompilations, guards that
failed, errors, compilations, compiled code, and the options of torch._dynamo.config and torch._inductor.config that
differ from their defaults. They are compiled by Inductor with g++, forward and backward, by the backends eager and
aot_eager, with graph breaks, with recompilations beyond the limit, with errors that are suppressed and with errors that
are not, with all kinds of options, and not at all (disabled by an option, by the environment). "equal": every one of
these facts, in the running process and in its core. Of a release that is not here, dispatch-compile says "unknown".

Nodes: twenty threads that each stand at another place of a backward pass (tests/inferiors/autograd.py); name, sequence
number and forward operator of the running node against `grad_fn.name()`, `_sequence_nr()` and the profiler. "wrong" is
what is reported and is not so; what is missing is unknown.

"""
_COLUMNS = ("torch", "CPython", "programs equal", "cores equal", "nodes right", "nodes wrong")


def main() -> int:
    """Exit status 0: everything that was compared is equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="releases")
    parser.add_argument("--python", default="3.11", metavar="X.Y", help="CPython to use (default: %(default)s)")
    parser.add_argument("--index-url", metavar="URL", help="package index for torch alone (default: pip's)")
    parser.add_argument("--installed", action="append", default=[], metavar="PYTHON",
                        help="instead: a Python that has torch")  # fmt: skip
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args()
    good = True
    for executable in options.installed:
        good = _compare(executable, options.output) and good
    for version in options.versions:
        with tempfile.TemporaryDirectory(prefix="gdbext-release-") as folder:
            try:
                python = pythons.need(options.python)
                executable = installed_torch.install(version, python, Path(folder), options.index_url)
                good = _compare(executable, options.output) and good
            except (GdbextError, AssertionError) as error:
                print(f"{version}: {error}", file=sys.stderr)
                good = False
    return 0 if good else 1


def _compare(python: str, page: Path) -> bool:
    """One release; whether all is equal. Raises HarnessError."""
    equal, cores, problems = 0, 0, []
    for program in compile_truth.PROGRAMS:
        with compile_truth.started(program, python) as process:
            live, core = (compile_truth.compare(program, process, core=core) for core in (False, True))
            equal, cores = equal + (not live), cores + (not core)
            problems += [f"{program}: {name}: {ours} instead of {theirs}"
                         for name, (ours, theirs) in {**core, **live}.items()]  # fmt: skip
    facts = process.truth["said"]
    with harness.started("autograd", python=python) as process:
        right, wrong = autograd_truth.count(process)
    number = len(compile_truth.PROGRAMS)
    row = [facts["torch"].partition("+")[0], facts["python"], f"{equal} of {number}", f"{cores} of {number}",
           f"{right} of {autograd_truth.POSITIONS}", str(wrong)]  # fmt: skip
    print("\n".join([" ".join(row), *problems]), file=sys.stderr, flush=True)
    if not is_known(row[0]):
        print(f"{row[0]} is not in COMPARED of gdbext/torch/compile/dynamo_names.py", file=sys.stderr)
    release_page.keep(page, _HEAD, _COLUMNS, row)
    return not problems and not wrong


if __name__ == "__main__":
    sys.exit(main())
