"""A private folder beside the results."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from gdbext.engine.formats.workplace import Workplace
from gdbext.errors import TargetError
from gdbext.tools.watch.evidence import EvidenceFolder, take_core

STRANGER = 65533
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")


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
    assert {each.name for each in (tmp_path / "moved").iterdir()} == {"x", "y"}
    assert not list((tmp_path / "etc").iterdir())


@as_root
def test_a_folder_behind_another_users_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    link = tmp_path / "job"
    link.symlink_to("etc")
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(TargetError, match="'job' is a link that another user may have laid"):
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
        os.write(1, b'{"verdict": {"kind": "deadlock", "summary": "so it is"}, "errors": [], "threads": []}')
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
    assert {each.name for each in job.iterdir()} == names
    assert all(each.is_file() and not each.is_symlink() for each in job.iterdir())
    assert {each.stat().st_mode & 0o777 for each in job.iterdir()} == {0o600}
