"""A file is whole or not there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gdbext.errors import TargetError
from gdbext.formats import whole_file
from gdbext.formats.whole_file import WholeFile


def test_it_appears_when_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("before")
    file = WholeFile(str(path))
    file.write(b"after")
    assert path.read_text() == "before"
    file.keep()
    assert path.read_text() == "after"
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("before")
    file = WholeFile(str(path))
    file.write(b"half")
    with pytest.raises(KeyboardInterrupt), file:
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    whole_file.write(str(tmp_path / "link"), b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_a_pipe_is_written_at_once(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    whole_file.write(str(pipe), b"x")
    reader.join(10)
    assert (found, pipe.is_fifo()) == ([b"x"], True)


def test_what_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="No such file") as caught:
        whole_file.write(str(tmp_path / "none" / "x"), b"")
    assert caught.value.help
