"""Whose a file is: every folder and link on the way to it counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdbext.cache import find_program, is_ours, resolve

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
STRANGER = 12345


def strange(path: Path) -> str:
    return resolve(str(path), (0, os.geteuid()), (0, os.getegid()))[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "a/b"
    made.mkdir(parents=True)
    (made / "file").touch()
    return tmp_path


def test_links_are_followed_once(folder: Path) -> None:
    (folder / "link").symlink_to("a/../a/b")
    assert resolve(f"{folder}/link/file", (0, os.geteuid()), (0, os.getegid())) == (f"{folder}/a/b/file", "")


def test_a_circle_of_links(folder: Path) -> None:
    (folder / "link").symlink_to("link")
    with pytest.raises(OSError, match="too many links"):
        resolve(str(folder / "link"), (0,))


@pytest.mark.parametrize("name", ["a", "a/b", "a/b/file"])
@root_only
def test_each_folder_on_the_way_counts(folder: Path, name: str) -> None:
    assert not strange(folder / "a/b/file")
    os.chown(folder / name, STRANGER, STRANGER)
    assert strange(folder / "a/b/file") == str(folder / name)


@root_only
def test_a_stranger_s_link_to_what_is_ours(folder: Path) -> None:
    (folder / "link").symlink_to("a")
    assert is_ours(str(folder / "link/b/file"))
    os.lchown(folder / "link", STRANGER, STRANGER)
    assert strange(folder / "link/b/file") == str(folder / "link")
    assert not is_ours(str(folder / "link/b/file"))


@root_only
def test_a_link_of_ours_through_a_stranger_s_folder(folder: Path) -> None:
    (folder / "theirs").mkdir()
    (folder / "theirs/link").symlink_to(folder / "a")
    os.chown(folder / "theirs", STRANGER, STRANGER)
    (folder / "link").symlink_to("theirs/link")
    assert strange(folder / "link/b/file") == str(folder / "theirs")


def test_who_else_may_write(folder: Path) -> None:
    (folder / "a").chmod(0o777)
    assert strange(folder / "a/b/file") == str(folder / "a")
    (folder / "a").chmod(0o1777)
    assert not strange(folder / "a/b/file"), "as in /tmp nobody can replace what is another's"
    (folder / "a").chmod(0o775)
    assert not strange(folder / "a/b/file"), "our own group"


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_no_program_of_the_folder_that_we_are_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(folder / "g++")
    monkeypatch.chdir(folder)
    for path in ("", ".", ":/nonexistent", "/nonexistent:"):
        monkeypatch.setenv("PATH", path)
        assert find_program("g++") is None
    monkeypatch.setenv("PATH", str(folder))
    assert find_program("g++") == f"{folder}/g++"
    assert find_program("a") is None


@root_only
def test_root_takes_no_program_that_a_stranger_may_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "theirs").mkdir()
    program(folder / "theirs/g++")
    os.chown(folder / "theirs", STRANGER, STRANGER)
    program(folder / "a/g++")
    monkeypatch.setenv("PATH", f"{folder}/theirs:{folder}/a")
    assert find_program("g++") == f"{folder}/a/g++"
