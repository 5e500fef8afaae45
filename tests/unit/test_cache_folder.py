"""Where things are cached, and who may put them there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdbext.cache import cache_folder, may_fill


def test_it_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == "/somewhere/gdbext"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/x")
    assert cache_folder() == "/home/x/.cache/gdbext"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == "/home/x/.cache/gdbext"


@pytest.mark.parametrize("home", ["", "relative"])
def test_without_a_home_nothing_is_made_where_we_happen_to_be(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    assert cache_folder() == "/.cache/gdbext"


@pytest.mark.parametrize(
    ("user", "home_of", "folder_of", "allowed"),
    [
        (1000, 1000, None, True),
        (1000, 0, None, True),
        (1000, 1000, 1000, True),
        (1000, 1000, 0, False),
        (0, 0, None, True),
        (0, 1000, None, False),
        (0, 1000, 1000, False),
        (0, 1000, 0, True),
    ],
)
def test_only_our_own_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, home_of: int, folder_of: int | None, allowed: bool
) -> None:
    """``None``: the folder is still to be made."""
    folder = tmp_path / "home" / ".cache" / "gdbext"
    owners = {str(tmp_path / "home"): home_of, **({} if folder_of is None else {str(folder): folder_of})}

    def stat(path: str) -> os.stat_result:
        if path not in owners:
            raise FileNotFoundError(path)
        return os.stat_result((0, 0, 0, 0, owners[path], 0, 0, 0, 0, 0))

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert may_fill(str(folder)) is allowed
