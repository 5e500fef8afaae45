"""A test that wants to be alone is: among threads that take turns as workers do."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from support.plugins.alone import turn
from support.programs import procfs
from support.programs.harness import PATIENCE, wait_until

FLOCK = "73"
"""arch/x86/entry/syscalls/syscall_64.tbl"""


class Visit(threading.Thread):
    """Takes a turn, and stays inside until it may leave."""

    def __init__(self, folder: Path, alone: bool) -> None:
        super().__init__(daemon=True)
        self.folder, self.alone = folder, alone
        self.is_inside, self.may_leave = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with turn(self.folder, self.alone):
            self.is_inside.set()
            self.may_leave.wait()

    def enters(self) -> None:
        assert self.is_inside.wait(PATIENCE)

    def is_kept_out(self) -> None:
        tid = self.native_id or 0
        wait_until(lambda: procfs.syscall(os.getpid(), tid)[0] == FLOCK, "it waits for its turn")
        assert not self.is_inside.is_set()

    def leaves(self) -> None:
        self.may_leave.set()
        self.join()


def test_alone_is_alone_and_gets_its_turn(tmp_path: Path) -> None:
    one, other = Visit(tmp_path, alone=False), Visit(tmp_path, alone=False)
    one.enters()
    other.enters()
    alone = Visit(tmp_path, alone=True)
    alone.is_kept_out()
    late = Visit(tmp_path, alone=False)
    late.is_kept_out()
    one.leaves()
    alone.is_kept_out()
    other.leaves()
    alone.enters()
    late.is_kept_out()
    alone.leaves()
    late.enters()
    late.leaves()


def test_whoever_leaves_by_an_error_leaves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x"), turn(tmp_path, alone=True):
        raise ValueError("x")
    with turn(tmp_path, alone=True):
        pass
