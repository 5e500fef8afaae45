"""The watcher of a test run: a process of its own, which explains a test that takes too long, and may kill it.

The test's process notes the test that runs in a page of shared memory (``TestBoard``), so that a test costs two stores
there and no system call, and a process that is stopped, or holds the GIL, is watched like any other.
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


class HangWatcher:
    """Watches one process of a test run: explains tests that run longer than ``threshold`` seconds."""

    def __init__(self, pid: int, board: TestBoard, threshold: float, folder: str, kills: bool) -> None:
        self._pid = pid
        self._board = board
        self._threshold = threshold
        self._folder = folder
        self._kills = kills

    def run(self) -> None:
        """Watch until the process exits, or standard input becomes readable."""
        handled = prepared = 0
        descriptors = [0, *process_descriptor(self._pid)]
        pause = 0.01
        while not select.select(descriptors, [], [], pause)[0] and (len(descriptors) > 1 or is_alive(self._pid)):
            pause = 0.25
            number, began, name = self._board.running() or (handled, 0.0, "")
            if number == handled:
                continue
            if prepared != number and time.monotonic() - began > self._threshold / 2:
                prepared = number
                self._hanging_tests.prepare()
            remaining = began + self._threshold - time.monotonic()
            if remaining > 0:
                pause = min(pause, max(0.01, remaining))
                continue
            handled = number
            self._hanging_tests.explain(handled, name)
            if self._kills:
                self._hanging_tests.kill(handled, began, SIGNAL)

    @cached_property
    def _hanging_tests(self) -> HangingTests:
        """Imported when a test takes long: most watchers never need it, and each process of a test run has one."""
        from gdbext.hosts.hanging_tests import HangingTests

        return HangingTests(self._pid, self._board, self._threshold, self._folder)


def main() -> None:
    """Watch a process until it exits. Arguments: its pid, the file descriptor of its board, the threshold in seconds,
    the folder for verdicts, and "" unless tests are to be killed."""
    pid, board, threshold, folder, kills = sys.argv[1:6]
    watcher = HangWatcher(int(pid), TestBoard(int(board)), float(threshold), folder, bool(kills))
    watcher.run()
