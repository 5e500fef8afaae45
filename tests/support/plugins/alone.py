"""A pytest plugin: a test marked ``alone`` runs while no other test does, also where several workers share the work.

Two locks on files that all workers of a run share. Whoever wants in goes through the gate; a test that wants to be
alone keeps the gate closed until those inside have left, so that it is not put off for ever.
"""

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
    """In the process that hands out the tests: tell each worker where the locks are."""
    if _FOLDER not in node.config.stash:
        node.config.stash[_FOLDER] = tempfile.mkdtemp(prefix="gdbext-turns-")
    node.workerinput["turns"] = node.config.stash[_FOLDER]


def pytest_unconfigure(config: pytest.Config) -> None:
    """The workers have ended."""
    shutil.rmtree(config.stash.get(_FOLDER, ""), ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Around the whole of a test, its fixtures included."""
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
