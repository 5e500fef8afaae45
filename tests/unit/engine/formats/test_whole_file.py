"""A file is whole or not there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gdbext.engine.formats import whole_file
from gdbext.engine.formats.whole_file import WholeFile
from gdbext.errors import TargetError


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


STRANGER = 65533
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")


def laid(link: Path, target: Path) -> Path:
    """A link that another user made."""
    link.symlink_to(target)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    return link


def shared(folder: Path) -> Path:
    """A folder of another user's."""
    folder.mkdir()
    os.chown(folder, STRANGER, STRANGER)
    return folder


@as_root
def test_a_link_that_another_user_laid_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    laid(tmp_path / "report.json", tmp_path / "precious")
    with pytest.raises(TargetError, match=r"'report\.json' is a link that another user may have laid"):
        whole_file.write(str(tmp_path / "report.json"), b"x")
    assert (tmp_path / "precious").read_text() == "precious"


@as_root
def test_nor_is_one_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    laid(shared(tmp_path / "job") / "out", tmp_path / "etc")
    for path in ("job/out/x", "job/out/../etc/x", "job/./out//x"):
        with pytest.raises(TargetError, match="link"):
            whole_file.write(str(tmp_path / path), b"x")
    assert not list((tmp_path / "etc").iterdir())


@as_root
def test_a_pipe_or_device_of_another_user_is_refused(tmp_path: Path) -> None:
    pipe = shared(tmp_path / "job") / "out"
    os.mkfifo(pipe)
    os.chown(pipe, STRANGER, STRANGER)
    with pytest.raises(TargetError, match="pipe"):
        whole_file.write(str(pipe), b"x")


def test_what_has_a_second_name_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    os.link(tmp_path / "precious", tmp_path / "out")
    whole_file.write(str(tmp_path / "out"), b"x")
    assert ((tmp_path / "precious").read_text(), (tmp_path / "out").read_text()) == ("precious", "x")


def test_a_folder_moved_away_meanwhile_keeps_the_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "etc").mkdir()
    with WholeFile(str(tmp_path / "folder/out")) as file:
        (tmp_path / "folder").rename(tmp_path / "elsewhere")
        (tmp_path / "folder").symlink_to("etc")
        file.write(b"x")
    assert [each.name for each in (tmp_path / "elsewhere").iterdir()] == ["out"]
    assert not list((tmp_path / "etc").iterdir())


@pytest.mark.parametrize(("mode", "expected"), [(whole_file.PUBLIC, 0o640), (whole_file.PRIVATE, 0o600)])
def test_who_may_read_it(tmp_path: Path, mode: int, expected: int) -> None:
    before = os.umask(0o027)
    try:
        whole_file.write(str(tmp_path / "x"), b"", mode)
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == expected


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}", "/proc/{pid}/fd/{}"])
def test_an_open_descriptor_is_written_where_it_stands(tmp_path: Path, name: str) -> None:
    """As /dev/stdout behind ``> FILE``: what is there already stays."""
    with (tmp_path / "x").open("wb", buffering=0) as stream:
        stream.write(b"one ")
        whole_file.write(name.format(stream.fileno(), pid=os.getpid()), b"two ")
        stream.write(b"three")
    assert (tmp_path / "x").read_bytes() == b"one two three"


@pytest.mark.parametrize("path", ["", ".", "..", "/", "x/", "a\0b"])
def test_what_is_no_file_name_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    before = {each.name for each in Path("/proc/self/fd").iterdir()}
    with pytest.raises(TargetError):
        whole_file.write(path, b"")
    assert {each.name for each in Path("/proc/self/fd").iterdir()} == before


def test_links_without_end_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(TargetError, match="levels of symbolic links"):
        whole_file.write(str(tmp_path / "a"), b"")
