"""What ``--run`` gets of a process in its environment is one line, whatever the process calls its threads."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from gdbext.tools.watch import Watch
from gdbext.tools.watch.evidence import Evidence

HOSTILE = {
    "nul": "a\0b",
    "header": "x\nBcc: everybody@example.org",
    "return and escape": "x\rSubject: y\x1b]0;x\x07",
    "direction": "\u202egpj",
    "surrogate": "\ud800",
    "long": "x" * 10_000_000,
    "letters": "é→𝔘",
}


def told(folder: Path, verdict: dict[str, str], command: str) -> bytes:
    """What the command writes to its standard output."""
    watch = object.__new__(Watch)
    watch._args, watch._commands = Namespace(run=f"({command}) > '{folder}/told'"), []
    evidence = Evidence(str(folder), "hang-1-2", verdict, "", frozenset())
    watch._start(evidence, 7)
    (child,) = watch._commands
    assert child.wait() == 0
    return (folder / "told").read_bytes()


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("member", ["kind", "summary"])
def test_a_variable_is_one_line_of_text(tmp_path: Path, member: str, name: str) -> None:
    verdict = {"kind": "deadlock", "summary": "x", member: HOSTILE[name]}
    output = told(tmp_path, verdict, 'printf %s "$GDBEXT_VERDICT$GDBEXT_SUMMARY"')
    text = output.decode()
    assert text.isprintable()
    assert 2 < len(text) < 10_000
    assert name != "letters" or HOSTILE[name] in text


def test_the_paths_can_be_opened(tmp_path: Path) -> None:
    folder = tmp_path / "of a\nuser"
    folder.mkdir()
    (folder / "hang-1-2.txt").write_text("text\n")
    told(folder, {"kind": "", "summary": ""}, 'read x < "$GDBEXT_FILE.txt"; echo $x > "$GDBEXT_FOLDER/$GDBEXT_PID"')
    assert (folder / "7").read_text() == "text\n"
