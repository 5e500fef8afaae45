"""A writer that is killed by SIGKILL before any line of the two doors for files leaves nothing of what it wrote, at the
latest once the next command has written there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gdbext.engine.formats import whole_file, workplace
from gdbext.engine.formats.whole_file import WholeFile
from gdbext.engine.formats.workplace import Workplace

SECRET = b"memory of a process"
DOORS = {whole_file.__file__, workplace.__file__}


def write_file(folder: Path) -> None:
    with WholeFile(str(folder / "result"), whole_file.PRIVATE) as file:
        file.write(SECRET)


def work(folder: Path) -> None:
    with Workplace(str(folder)) as place:
        os.write(place.create("x"), SECRET)
        os.write(place.create("y"), SECRET)
        place.publish("x", "result")


def dies_at(number: int, work: Callable[[], None]) -> bool:
    """Run ``work`` in a child that is killed before the line of that number in the doors; False if it came to its
    end."""
    child = os.fork()
    if child == 0:
        lines = iter(range(number, -1, -1))

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in DOORS:
                return None
            if event == "line" and next(lines) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        work()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def contents(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def an_ordinary_disk(_: pytest.MonkeyPatch) -> None:
    pass


def no_nameless_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS."""
    monkeypatch.setattr(whole_file, "_NAMELESS", os.O_WRONLY | os.O_CREAT | os.O_DIRECTORY)


def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk without hard links."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refused)


@pytest.mark.parametrize(
    ("write", "existing", "disk"),
    [
        (write_file, None, an_ordinary_disk),
        (work, b"before", an_ordinary_disk),
        pytest.param(write_file, b"before", no_nameless_files, marks=pytest.mark.extended),
        pytest.param(write_file, b"before", no_links, marks=pytest.mark.extended),
    ],
)
def test_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, existing: bytes | None, disk: Any
) -> None:
    disk(monkeypatch)
    result = tmp_path / "result"
    needs_no_other_name = write is write_file and existing is None
    seen = set()
    for number in range(1000):
        result.unlink(missing_ok=True)
        if existing is not None:
            result.write_bytes(existing)
        if not dies_at(number, lambda: write(tmp_path)):
            break
        found = result.read_bytes() if result.exists() else None
        assert found in (existing, SECRET)
        seen.add(found)
        assert not needs_no_other_name or contents(tmp_path) in ([], ["result"])
        Workplace(str(tmp_path)).close()
        assert contents(tmp_path) in ([], ["result"])
    assert number > 10
    assert seen == {existing, SECRET}


def test_what_is_being_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workplace(str(tmp_path)) as place:
        os.write(place.create("x"), SECRET)
        (hidden,) = contents(tmp_path)
        whole_file.write(str(tmp_path / "beside"), b"")
        Workplace(str(tmp_path)).close()
        assert contents(tmp_path) == sorted([hidden, "beside"])
        assert place.data("x") == SECRET
    no_nameless_files(monkeypatch)
    with WholeFile(str(tmp_path / "result")) as file:
        whole_file.write(str(tmp_path / "beside"), b"")
        file.write(SECRET)
    assert contents(tmp_path) == ["beside", "result"]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder of another user")
def test_nothing_is_deleted_where_another_user_can_move_what_is_ours(tmp_path: Path) -> None:
    """Whoever owns the folder can give a folder of root's the name of a leftover."""
    os.chown(tmp_path, 65533, 65533)
    moved = tmp_path / whole_file.hidden_name()
    moved.mkdir()
    (moved / "precious").touch()
    Workplace(str(tmp_path)).close()
    assert (moved / "precious").exists()


def test_a_file_that_is_shown_early_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for disk in (an_ordinary_disk, no_links):
        disk(monkeypatch)
        file = WholeFile(str(tmp_path / "result"))
        file.write(b"be")
        file.show()
        file.write(b"gun")
        assert (tmp_path / "result").read_bytes() == b"begun"
        file.keep()
        assert contents(tmp_path) == ["result"]
