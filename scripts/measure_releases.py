#!/usr/bin/env python3
"""Compare what gdbext reads of released wheels with what PyTorch says of itself.

Writes docs/measurements/releases-compared.md.

Each release is installed into a folder of its own, compared, and removed; one takes 3 GB and a minute or two. What
compares has no compiler on its PATH, no network (unshare) and a wheel without headers, as in a container. Run it
from the development environment (scripts/test makes it): .venv/bin/python scripts/measure_releases.py 2.0.1 2.15.0
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib"), str(ROOT / "tests")]

import each_release  # noqa: E402

from gdbext.diagnosis.session import Session  # noqa: E402
from gdbext.engine.targets.live.proc_target import ProcTarget  # noqa: E402
from gdbext.errors import LayoutError  # noqa: E402
from support.programs import harness  # noqa: E402
from support.truth import dispatch_dumps, keyset_truth  # noqa: E402

PAGE = ROOT / "docs" / "measurements" / "releases-compared.md"
_HEAD = """# Dispatch tables, keysets and arguments, compared with PyTorch's own dumps

`scripts/measure_releases.py` writes this page. It installs each wheel from the package index, starts programs with
it, and compares gdbext's report with PyTorch's own functions. It uses only layouts that gdbext includes.

| column | compared with |
|---|---|
| cells equal | every entry (kernel, reason) of every operator's dispatch table, with `torch._C._dispatch_dump_table` |
| registrations equal | all operators, with `torch._C._dispatch_dump` |
| keysets | those recovered from the stacks of 40 operators stopped in their kernels, with registers at breakpoints |
| arguments | the tensors found in these stacks |
| alone | yes: no compiler on the PATH, no headers in the wheel, no network access |

"""
_COLUMNS = (
    "torch",
    "CPython",
    "layout",
    "cells equal",
    "registrations equal",
    "keysets proven",
    "keysets wrong",
    "arguments found",
    "arguments wrong",
    "alone",
)
_TOOLS = ("gdb", "nm")
"""All that the comparison runs, besides the Pythons."""
_COUNTS = "--counts"
"""With an interpreter: this script compares the torch of that one as it is, and prints the counts as JSON."""


class Tables(NamedTuple):
    """How the tables of one process compare with PyTorch's dumps."""

    python: str
    layout: str
    cells: int
    equal: int
    operators: int
    states: int
    """Operators whose registrations are equal."""
    differences: list[str]


def main() -> int:
    """Exit status 0: everything that was compared is equal."""
    if sys.argv[1:2] == [_COUNTS]:
        print(json.dumps(compare(sys.argv[2])))
        return 0
    return each_release.run(__doc__, PAGE, _HEAD, _COLUMNS, _measure, headers=False)


def _measure(version: str, executable: str) -> tuple[list[str], list[str]]:
    """The row of a release, and what differs, in words. Raises GdbextError, HarnessError."""
    with tempfile.TemporaryDirectory(prefix="gdbext-tools-") as folder:
        found = _compare_alone(executable, Path(folder))
    tables, keysets = Tables(*found["tables"]), found["keysets"]
    counts, arguments = keysets["counts"], keysets["arguments"]
    row = [
        *(version, tables.python, tables.layout),
        *(f"{tables.equal} of {tables.cells}", f"{tables.states} of {tables.operators}"),
        *(f"{counts['proven']} of {counts['steps'] + counts['missed']}", str(counts["wrong"])),
        *(f"{arguments['found']} of {arguments['tensors']}", str(arguments["wrong"])),
        "yes",
    ]
    worth_reading = [problem for problem in keysets["problems"] if not problem.startswith("no argument")]
    return row, [*tables.differences, *worth_reading]


def _compare_alone(executable: str, tools: Path) -> dict[str, Any]:
    """What ``compare`` finds where there is neither a compiler nor a network. Raises LayoutError."""
    for name in _TOOLS:
        (tools / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    isolated = [shutil.which("unshare") or "unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    done = subprocess.run(
        [*isolated, sys.executable, __file__, _COUNTS, executable],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": str(tools)},
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LayoutError(f"the comparison failed: {last}", why="see the message", help=f"try {_COUNTS} PYTHON")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(executable: str) -> dict[str, Any]:
    """The counts of the torch that this interpreter imports: "tables" (of ``Tables``) and "keysets"."""
    return {"tables": compare_tables(executable), "keysets": keyset_truth.compare(executable)}


def compare_tables(python: str) -> Tables:
    """The tables of a process that has only imported torch, against its own dumps."""
    inferior = harness.start("dispatch-tables", python=python)
    target = ProcTarget(inferior.pid)
    try:
        dumps = json.loads(Path(inferior.truth["dumps"]).read_text())
        return _compare(Session(target), dumps, inferior.truth["python"])
    finally:
        target.close()
        inferior.close()


def _compare(session: Session, dumps: dict[str, list[str]], python: str) -> Tables:
    counts: Counter[str] = Counter()
    differences: Counter[str] = Counter()
    operators = {operator.qualified: operator for operator in session.dispatcher.operators()}
    for name, (state, table) in dumps.items():
        if name not in operators:
            counts["cells"] += len(_cells(dispatch_dumps.their_lines(table)))
            differences["operator that was not found"] += 1
            continue
        theirs = _cells(dispatch_dumps.their_lines(table))
        ours = _cells(dispatch_dumps.table_dump(session, session.tables.table(operators[name])))
        unequal = [key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)]
        differences.update(_words(ours.get(key), theirs.get(key)) for key in unequal)
        same = dispatch_dumps.state_dump(session, operators[name]) == dispatch_dumps.their_lines(state)
        differences["operator with other registrations"] += not same
        counts.update(cells=len(theirs.keys() | ours.keys()), unequal=len(unequal), states=same)
    said = [f"{number} times: {what}" for what, number in differences.most_common(20) if number]
    equal = counts["cells"] - counts["unequal"]
    return Tables(python, session.layout.match, counts["cells"], equal, len(dumps), counts["states"], said)


def _cells(lines: list[str]) -> dict[str, str]:
    """Key → the rest of its line."""
    return {key: rest for key, _, rest in (line.partition(": ") for line in lines)}


def _words(ours: str | None, theirs: str | None) -> str:
    reasons = [line.rpartition(" [")[2].rstrip("]") if line else "no entry" for line in (ours, theirs)]
    return f"[{reasons[0]}], truly [{reasons[1]}]" if reasons[0] != reasons[1] else f"another kernel, [{reasons[0]}]"


if __name__ == "__main__":
    sys.exit(main())
