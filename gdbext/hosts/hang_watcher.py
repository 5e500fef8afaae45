"""The watcher of a test run: a process of its own, which explains a test that takes too long, and may end it.

The test's process tells it by a page of shared memory (``TestBoard``), so that a test costs two stores there and no
call of the kernel, and a process that is stopped, or holds the GIL, is watched like any other. What a look needs is
hanging_tests.py.
"""

from __future__ import annotations

import select
import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.hosts.hang_board import SIGNAL, TestBoard, is_alive, process_descriptor

if TYPE_CHECKING:
    from gdbext.hosts.hanging_tests import HangingTests

_POLL = 0.25
"""Seconds between two looks at the board."""


class HangWatcher:
    """Watches one process of a test run until it ends."""

    def __init__(self, pid: int, board: TestBoard, threshold: float, folder: str, kills: bool) -> None:
        self._pid = pid
        self._board = board
        self._threshold = threshold
        self._folder = folder
        self._kills = kills

    def run(self) -> None:
        """Watch until the process ends, or something can be read from standard input."""
        handled = prepared = 0
        waits = [0, *process_descriptor(self._pid)]
        while self._goes_on(waits, handled):
            test = self._board.running()
            if not test or test[0] == handled:
                continue
            if prepared != test[0] and time.monotonic() - test[1] > self._threshold / 2:
                prepared = test[0]
                self._hanging_tests.prepare()
            if time.monotonic() - test[1] >= self._threshold:
                handled = test[0]
                self._hanging_tests.explain(handled, test[2])
                if self._kills:
                    self._hanging_tests.end(handled, test[1], SIGNAL)

    @cached_property
    def _hanging_tests(self) -> HangingTests:
        """Imported when a test takes long: most watchers never look, and each process of a test run has one."""
        from gdbext.hosts.hanging_tests import HangingTests

        return HangingTests(self._pid, self._board, self._threshold, self._folder)

    def _goes_on(self, waits: list[int], handled: int) -> bool:
        """Wait until the board is to be looked at again; false where the process or its run has ended."""
        if select.select(waits, [], [], self._pause(handled))[0]:
            return False
        return len(waits) > 1 or is_alive(self._pid)

    def _pause(self, handled: int) -> float:
        """Seconds until the board is looked at again: at the latest when the test that runs exceeds its time."""
        test = self._board.running()
        if not test or test[0] == handled:
            return _POLL
        return min(_POLL, max(0.01, test[1] + self._threshold - time.monotonic()))


def main() -> None:
    """Watch process ``argv[1]``, whose board is descriptor ``argv[2]``, until it ends."""
    pid, board, threshold, folder, kills = sys.argv[1:6]
    watcher = HangWatcher(int(pid), TestBoard(int(board)), float(threshold), folder, bool(kills))
    watcher.run()
