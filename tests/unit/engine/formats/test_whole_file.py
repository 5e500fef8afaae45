"""A file is whole or not there, private, and behind no link of another user's; so it is when its writer is killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gdbext.diagnosis.kinds.deadlock import DEADLOCK
from gdbext.diagnosis.report import Report, json_report
from gdbext.diagnosis.report.finding import Finding, Verdict
from gdbext.engine.formats import whole_file, workplace
from gdbext.engine.formats.whole_file import WholeFile
from gdbext.engine.formats.workplace import Workplace
from gdbext.errors import TargetError
from gdbext.tools.watch.evidence import EvidenceFolder, take_core


def contents(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_it_appears_when_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("before")
    torn, file = WholeFile(str(path)), WholeFile(str(path))
    torn.write(b"half")
    with pytest.raises(KeyboardInterrupt), torn:
        raise KeyboardInterrupt
    file.write(b"after")
    assert path.read_text() == "before"
    file.keep()
    assert path.read_text() == "after"
    assert contents(tmp_path) == ["x"]


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
def test_no_link_that_another_user_laid_is_followed(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "precious").write_text("precious")
    laid(tmp_path / "report.json", tmp_path / "precious")
    laid(shared(tmp_path / "job") / "out", tmp_path / "etc")
    for path in ("report.json", "job/out/x", "job/out/../etc/x", "job/./out//x"):
        with pytest.raises(TargetError, match="' is a link that another user may have made"):
            whole_file.write(str(tmp_path / path), b"x")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not contents(tmp_path / "etc")


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
    assert contents(tmp_path / "elsewhere") == ["out"]
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


@pytest.mark.parametrize(
    ("path", "said"),
    [
        *((path, None) for path in ("", ".", "..", "/", "x/", "a\0b")),
        ("link", "levels of symbolic links"),
        ("none/x", "No such file"),
    ],
)
def test_what_is_no_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, said: str | None) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("link")
    before = contents(Path("/proc/self/fd"))
    with pytest.raises(TargetError, match=said) as caught:
        whole_file.write(path, b"")
    assert contents(Path("/proc/self/fd")) == before
    assert said != "No such file" or caught.value.help


def test_only_what_is_published_stays(tmp_path: Path) -> None:
    with Workplace(str(tmp_path / "new" / "folder")) as place:
        for name in ("kept", "dropped"):
            os.write(place.create(name), name.encode())
        (made,) = (tmp_path / "new/folder").iterdir()
        assert (made.stat().st_mode & 0o777, place.read("kept")) == (0o700, "kept")
        place.publish("kept", "result")
    (result,) = (tmp_path / "new/folder").iterdir()
    assert (result.name, result.read_text(), result.stat().st_mode & 0o777) == ("result", "kept", 0o600)


def test_a_full_disk_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    evidence = EvidenceFolder(str(tmp_path), lambda _words: 1)
    with pytest.raises(TargetError, match="no diagnosis was made"):
        evidence.take(1)
    monkeypatch.setattr(os, "posix_fallocate", refused)
    with pytest.raises(TargetError, match=f"No space left on device: less than 4 MB are free in {tmp_path}"):
        evidence.take(1)
    assert not list(tmp_path.iterdir())


def test_it_is_where_it_was_whatever_happens_to_the_folders_above(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "etc").mkdir()
    with Workplace(str(tmp_path / "job")) as place:
        (tmp_path / "job").rename(tmp_path / "moved")
        (tmp_path / "job").symlink_to("etc")
        os.write(place.create("x"), b"x")
        subprocess.run(["/bin/sh", "-c", "echo y >y"], cwd=place.path, check=True)
        for name in "xy":
            place.publish(name)
    assert contents(tmp_path / "moved") == ["x", "y"]
    assert not list((tmp_path / "etc").iterdir())


@as_root
def test_a_folder_behind_another_users_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    link = laid(tmp_path / "job", tmp_path / "etc")
    with pytest.raises(TargetError, match="'job' is a link that another user may have made"):
        EvidenceFolder(str(link / "hangs"), lambda _: 0)
    assert not list((tmp_path / "etc").iterdir())


def test_evidence_goes_through_no_link_that_was_laid_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its names can be guessed: the process's id, and the time."""
    precious, job = tmp_path / "precious", tmp_path / "job"
    precious.write_text("precious")
    job.mkdir()
    monkeypatch.setattr("time.strftime", lambda _: "TIME")
    names = {f"hang-7-TIME.{ending}" for ending in ("txt", "json", "rec", "html", "core")}
    for name in names:
        (job / name).symlink_to(precious)

    def dispatch(words: list[str]) -> int:
        """As scripts/dispatch: prints a report, and writes a recording and a page where it is told to."""
        verdict = Verdict.of(Finding(DEADLOCK, "so it is"))
        os.write(1, json_report.render(Report("dispatch-diagnose", None, verdict=verdict)).encode())
        for option in {"--record", "--html"} & set(words):
            Path(words[words.index(option) + 1]).write_text(option)
        return 0

    gcore = tmp_path / "bin/gcore"
    gcore.parent.mkdir()
    gcore.write_text('#!/bin/sh\necho core >"$2.$3"\n')
    gcore.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gcore.parent}:/bin:/usr/bin")
    evidence = EvidenceFolder(str(job), dispatch).take(7)  # type: ignore[arg-type]
    assert (evidence.verdict["kind"], take_core(evidence, 7)) == ("deadlock", "core")
    assert precious.read_text() == "precious"
    assert set(contents(job)) == names
    assert all(each.is_file() and not each.is_symlink() for each in job.iterdir())
    assert {each.stat().st_mode & 0o777 for each in job.iterdir()} == {0o600}


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
        (write_file, None, None),
        (work, b"before", None),
        pytest.param(write_file, b"before", no_nameless_files, marks=pytest.mark.extended),
        pytest.param(write_file, b"before", no_links, marks=pytest.mark.extended),
    ],
)
def test_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, existing: bytes | None, disk: Any
) -> None:
    if disk is not None:
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


@as_root
def test_nothing_is_deleted_where_another_user_can_move_what_is_ours(tmp_path: Path) -> None:
    """Whoever owns the folder can give a folder of root's the name of a leftover."""
    os.chown(tmp_path, STRANGER, STRANGER)
    moved = tmp_path / whole_file.hidden_name()
    moved.mkdir()
    (moved / "precious").touch()
    Workplace(str(tmp_path)).close()
    assert (moved / "precious").exists()


def test_a_file_that_is_shown_early_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for has_links in (True, False):
        if not has_links:
            no_links(monkeypatch)
        file = WholeFile(str(tmp_path / "result"))
        file.write(b"be")
        file.show()
        file.write(b"gun")
        assert (tmp_path / "result").read_bytes() == b"begun"
        file.keep()
        assert contents(tmp_path) == ["result"]
