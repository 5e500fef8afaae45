"""Source lines under Python frames: read from the process's own files, and doubted where those are newer."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.diagnosis.commands.bt import source_text
from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.threads.source_lines import MAX_FILE, SourceLine, SourceReader
from gdbext.engine import terminal
from gdbext.engine.targets.base_target import TargetOrigin
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.render import Style


class Files(TargetOrigin):
    """Files below a root folder, and a time."""

    def __init__(self, root: Path, known_at: float | None = None) -> None:
        super().__init__(ForeignFiles(str(root)))
        self.known_at = known_at

    def files_known_at(self) -> float | None:
        return self.known_at


def read(root: Path, data: bytes, number: int = 1, file: str = "/model.py", modified: float = 1000.0) -> Any:
    (root / "model.py").write_bytes(data)
    os.utime(root / "model.py", (modified, modified))
    return line(root, number, file, 1000.0)


def line(root: Path, number: int = 1, file: str = "/model.py", known_at: float | None = None) -> SourceLine | None:
    return SourceReader(cast(Any, SimpleNamespace(origin=Files(root, known_at)))).line(file, number)


def test_the_line_is_read_below_the_root(tmp_path: Path) -> None:
    assert read(tmp_path, b"def step():\n    return  x @ w\n", 2) == SourceLine("return  x @ w")
    assert line(tmp_path, 2) == SourceLine("return  x @ w"), "where nobody knows when the process started"


@pytest.mark.parametrize("line_or_file", [0, -1, 4, 10**9, "<string>", "model.py", "/missing.py", "/\0", ""])
def test_a_line_that_is_not_there_and_a_file_that_cannot_be_known(tmp_path: Path, line_or_file: int | str) -> None:
    number, file = (line_or_file, "/model.py") if isinstance(line_or_file, int) else (1, line_or_file)
    assert read(tmp_path, b"a = 1\nb = 2\n", number, file) is None


@pytest.mark.parametrize(
    ("modified", "changed"), [(999.0, ""), (1000.02, ""), (1001.0, "the file changed after the process started")]
)
def test_a_file_that_changed_since_is_doubted(tmp_path: Path, modified: float, changed: str) -> None:
    assert read(tmp_path, b"a = 1\n", modified=modified) == SourceLine("a = 1", changed)


def test_the_declared_encoding_holds_and_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\nname = 'Zoë'\n".encode("latin-1")
    assert read(tmp_path, text, 2) == SourceLine("name = 'Zoë'")
    for declared in (b"# coding: nonsense", b"# coding: utf-8", b"# nothing"):
        assert read(tmp_path, declared + b"\nx = '\xff'\n", 2).text.startswith("x = '")


def test_a_pipe_under_the_name_is_not_waited_for_and_a_huge_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.py")
    assert line(tmp_path) is None
    (tmp_path / "model.py").unlink()
    with (tmp_path / "model.py").open("wb") as stream:
        stream.write(b"a = 1\n")
        stream.truncate(MAX_FILE + 1)
    assert line(tmp_path) is None


def test_the_text_shows_line_and_doubt_and_a_terminal_gets_colour_and_the_same_words() -> None:
    frame = Frame(0, FrameKind.PYTHON, None, "step", file="/model.py", line=2)
    sources = {("/model.py", 2): SourceLine("x\x1b[2J = 1", "the file changed")}
    assert list(source_text(frame, Style(), sources)) == ["        x\\x1b[2J = 1  [the file changed]"]
    assert list(source_text(frame, Style(), {})) == []
    pytest.importorskip("pygments")
    (shown,) = source_text(frame, Style(color=True), {("/model.py", 2): SourceLine("return x")})
    assert "\x1b[" in terminal.shown(shown)
    assert "return" in shown
