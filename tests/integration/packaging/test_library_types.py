"""mypy over a program of a user of the library: it knows every name, and finds the misspelt ones."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.programs.harness import ROOT, run

GOOD = """\
import gdbext
from gdbext import Process, Thread

def innermost(thread: Thread) -> str:
    return thread.dispatch[0].op or "?" if thread.dispatch else ""

with gdbext.open(pid=1) as process:
    found: Process = process
    kind: str = process.diagnose().verdict.kind.value
    summary: str = process.diagnose().verdict.summary
    for thread in process.threads:
        line: int | None = thread.python[0].line
        names: tuple[str, ...] = thread.dispatch[0].keyset.keys if thread.dispatch[0].keyset else ()
        where: str = thread.frames[0].function
        at: int = thread.wait.address if thread.wait else 0
        print(innermost(thread), thread.wait.certainty.value if thread.wait else "")
"""
WRONG = {
    "thread.pyhton[0].line": "pyhton",
    "process.diagnose().verdict.sumary": "sumary",
    "thread.wait and thread.wait.adress": "adress",
    "gdbext.opne(pid=1)": "opne",
    "gdbext.open(1)": "positional",
}


def test_types_for_users(tmp_path: Path) -> None:
    """In a project of the user's own, of whose settings ours are no part."""
    head = "import gdbext\ndef run(process: gdbext.Process, thread: gdbext.Thread) -> None:\n"
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "misspelt.py").write_text(head + "".join(f"    {line}\n" for line in WRONG))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "good.py", "misspelt.py"]
    said = run(command, cwd=tmp_path, env={"MYPYPATH": "", "PYTHONPATH": str(ROOT), "PATH": ""}).stdout
    assert "good.py" not in said
    for number, word in enumerate(WRONG.values(), 3):
        assert re.search(rf"^misspelt\.py:{number}: error.*{word}", said, re.MULTILINE), said
