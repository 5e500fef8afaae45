"""A pytest plugin: a test marked ``alone`` runs while no other test of any worker does. It keeps a gate that all go
through closed until those inside have left, so that it is not put off for ever."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_FOLDER = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if _FOLDER not in node.config.stash:
        node.config.stash[_FOLDER] = tempfile.mkdtemp(prefix="gdbext-turns-")
    node.workerinput["turns"] = node.config.stash[_FOLDER]


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash.get(_FOLDER, ""), ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    folder = getattr(item.config, "workerinput", {}).get("turns")
    if folder is None:
        return (yield)
    with turn(Path(folder), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def turn(folder: Path, alone: bool) -> Iterator[None]:
    """Hold a place among all who run now, or the only one."""
    with (folder / "gate").open("w") as gate, (folder / "room").open("w") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:  # a child that the test forked and left has the same open file, and would hold the lock
            fcntl.flock(room, fcntl.LOCK_UN)
