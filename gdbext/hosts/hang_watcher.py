"""The watcher of a test run: a process of its own, which explains a test that takes too long, and may kill it.

The test's process notes the test that runs in a page of shared memory (``TestBoard``), so that a test costs two stores
there and no system call, and a process that is stopped, or holds the GIL, is watched like any other.
"""

from __future__ import annotations

import select
import sys
import time
from typing import TYPE_CHECKING

from gdbext.hosts.hang_board import SIGNAL, TestBoard, is_alive, process_descriptor

if TYPE_CHECKING:
    from gdbext.hosts.hanging_tests import HangingTests


def main() -> None:
    """Watch a process until it exits, or standard input becomes readable. Arguments: its pid, the file descriptor of
    its board, the threshold in seconds, the folder for verdicts, and "" unless tests are to be killed."""
    pid, threshold, folder, kills = int(sys.argv[1]), float(sys.argv[3]), sys.argv[4], bool(sys.argv[5])
    board = TestBoard(int(sys.argv[2]))
    tests: HangingTests | None = None
    examined = 0
    descriptors = [0, *process_descriptor(pid)]
    pause = 0.01
    while not select.select(descriptors, [], [], pause)[0] and (len(descriptors) > 1 or is_alive(pid)):
        pause = 0.25
        number, began, name = board.running() or (examined, 0.0, "")
        if number == examined:
            continue
        remaining = began + threshold - time.monotonic()
        if not tests and remaining < threshold / 2:
            # imported when a test takes long: most watchers never need it, and each process of a test run has one
            from gdbext.hosts.hanging_tests import HangingTests

            tests = HangingTests(pid, board, threshold, folder)
            tests.prepare()
        if remaining > 0 or not tests:
            pause = min(pause, max(0.01, remaining))
            continue
        examined = number
        tests.explain(number, name)
        if kills:
            tests.kill(number, began, SIGNAL)
