"""Where things are cached, and who may put them there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdbext.cache import cache_folder, may_fill, open_ours


@pytest.mark.parametrize(
    ("xdg", "home", "expected"),
    [
        ("/somewhere", "/home/x", "/somewhere/gdbext"),
        ("relative", "/home/x", "/home/x/.cache/gdbext"),
        (None, "/home/x", "/home/x/.cache/gdbext"),
        (None, "", "/.cache/gdbext"),  # nothing is made where we happen to be
        (None, "relative", "/.cache/gdbext"),
    ],
)
def test_it_follows_xdg(monkeypatch: pytest.MonkeyPatch, xdg: str | None, home: str, expected: str) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", home)
    assert cache_folder() == expected


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes folders of other users")


@as_root
@pytest.mark.parametrize(
    ("user", "home_of", "folder_of", "allowed"),
    [
        (1000, 1000, None, True),
        (1000, 1000, 1000, True),
        (1000, 1000, 0, False),
        (0, 0, None, True),
        (0, 1000, None, False),
        (0, 1000, 0, False),  # they could exchange it
    ],
)
def test_only_our_own_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, home_of: int, folder_of: int | None, allowed: bool
) -> None:
    """``None``: the folder is still to be made."""
    folder = tmp_path / "home/.cache/gdbext"
    (tmp_path / "home").mkdir()
    if folder_of is not None:
        folder.mkdir(parents=True)
        os.chown(folder.parent, home_of, home_of)
        os.chown(folder, folder_of, folder_of)
    os.chown(tmp_path / "home", home_of, home_of)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert may_fill(str(folder)) is allowed


@as_root
@pytest.mark.parametrize(
    ("above", "own", "expected"),
    [
        (0o1777, None, True),  # /tmp: we make it, and nobody else can take it away
        (0o1777, 0o700, True),
        (0o777, None, False),
        (0o777, 0o700, False),
        (0o775, 0o700, True),  # the user's own group
        (0o755, 0o777, False),
        (0o755, 0o1777, False),
        (0o755, 0o755, True),
    ],
)
def test_a_folder_that_others_may_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: int, own: int | None, expected: bool
) -> None:
    """``above``, ``own``: modes of the folder that $XDG_CACHE_HOME names, and of ours in it."""
    base = tmp_path / "base"
    base.mkdir()
    os.chown(base, 0, 1000)
    base.chmod(above)
    if own is not None:
        (base / "gdbext").mkdir()
        os.chown(base / "gdbext", 1000, 1000)
        (base / "gdbext").chmod(own)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    assert may_fill(cache_folder()) is expected


@as_root
def test_a_folder_that_somebody_else_made_in_tmp_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp/gdbext/pycache").mkdir(parents=True)
    (tmp_path / "tmp").chmod(0o1777)
    os.chown(tmp_path / "tmp/gdbext", 1001, 1001)
    os.chown(tmp_path / "tmp/gdbext/pycache", 1000, 1000)  # as if moved there
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not may_fill(str(tmp_path / "tmp/gdbext/pycache"))
    assert not may_fill(str(tmp_path / "tmp/gdbext/new"))


@as_root
def test_who_has_no_name_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's folders are those of all whom a user namespace does not know."""
    folder = tmp_path / "gdbext"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert not may_fill(str(folder))


def test_a_cached_file_is_ours_and_no_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    os.close(open_ours(f"{tmp_path}/real"))
    for name in ("link", "pipe", "none"):
        with pytest.raises(OSError, match=r"."):
            open_ours(f"{tmp_path}/{name}")


@as_root
def test_a_cached_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    os.chown(tmp_path / "x", 1001, 1001)
    with pytest.raises(PermissionError):
        open_ours(f"{tmp_path}/x")


def test_a_link_to_our_own_folder_is_followed(tmp_path: Path) -> None:
    """As where ~/.cache lies on another disk."""
    (tmp_path / "disk").mkdir(0o700)
    (tmp_path / "cache").symlink_to("disk")
    (tmp_path / "disk/x").write_text("x")
    assert may_fill(f"{tmp_path}/cache")
    os.close(open_ours(f"{tmp_path}/cache/x"))
