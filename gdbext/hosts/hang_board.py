"""The page of shared memory in which a test run notes which test runs, and its watcher which one it examined.

Imported into the process of the test run, so it imports next to nothing.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import time

SIZE = 2 * mmap.PAGESIZE
_RUNNING = struct.Struct("<QdI")
"""Number of the test (odd while it runs), its start on the monotonic clock, length of its name, which follows."""
_NUMBER, _START_AND_LENGTH = struct.Struct("<Q"), struct.Struct("<dI")
"""The same in two parts: the number is written last, so that a reader who finds it has the rest of the same test."""
_NAME = _RUNNING.size
_now = time.monotonic
_EXAMINED = struct.Struct("<QQI")
"""Numbers of the tests that the watcher began to examine and has examined, length of the name of the file, which
follows."""
_EXAMINED_AT = mmap.PAGESIZE
_LONGEST = 3000
"""Most bytes of a name."""
SIGNAL = 62
"""The signal that makes a test fail, SIGRTMAX - 2; real-time signals are rarely used."""


class TestBoard:
    """The shared page. The test's process writes the first half, the watcher the second."""

    __test__ = False  # for pytest, which collects classes named Test…

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, SIZE)
        self._note, self._publish = _START_AND_LENGTH.pack_into, _NUMBER.pack_into
        self.number = 0  # of the test that runs (odd), or one more than that of the last one

    def examined_byte(self) -> tuple[mmap.mmap, int]:
        """(page, index of a byte that is not zero once the watcher has examined any test: an odd number's lowest)."""
        return self._page, _EXAMINED_AT

    def begin(self, name: str) -> None:
        """Note that a test begins."""
        encoded = name.encode("utf-8", "backslashreplace")[:_LONGEST]
        length = len(encoded)
        self.number = number = (self.number + 1) | 1
        self._page[_NAME : _NAME + length] = encoded
        self._note(self._page, _NUMBER.size, _now(), length)
        self._publish(self._page, 0, number)

    def end(self) -> None:
        """Note that the test has ended, or waits for the user."""
        self.number += self.number % 2
        _RUNNING.pack_into(self._page, 0, self.number, 0.0, 0)

    def running(self) -> tuple[int, float, str] | None:
        """Number, start (monotonic clock) and name of the test that runs; None if none runs, or another one begins."""
        number, began, length = _RUNNING.unpack_from(self._page, 0)
        name = self._page[_NAME : _NAME + min(length, _LONGEST)]
        if number % 2 == 0 or _RUNNING.unpack_from(self._page, 0)[0] != number:
            return None
        return number, began, name.decode("utf-8", "replace")

    def is_examined(self) -> bool:
        """True if the watcher has begun to examine the test that runs, or the last one."""
        if not self._page[_EXAMINED_AT]:
            return False
        examined: int = _EXAMINED.unpack_from(self._page, _EXAMINED_AT)[0]
        test = self.number if self.number % 2 else self.number - 1
        return self.number != 0 and examined == test

    def verdict_file(self, patience: float) -> str:
        """The file with the verdict on that test, "" if none is written within ``patience`` seconds."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            started, finished, length = _EXAMINED.unpack_from(self._page, _EXAMINED_AT)
            if started == finished:
                start = _EXAMINED_AT + _EXAMINED.size
                return os.fsdecode(self._page[start : start + length])
            time.sleep(0.02)
        return ""

    def note_examined(self, started: int, finished: int, file: str = "") -> None:
        """Write the numbers of the tests that the watcher began to examine and has examined, and the verdict's file."""
        encoded = os.fsencode(file)[:_LONGEST]
        start = _EXAMINED_AT + _EXAMINED.size
        self._page[start : start + len(encoded)] = encoded
        # the length, too, before the numbers, which make both valid
        struct.pack_into("<I", self._page, _EXAMINED_AT + struct.calcsize("<QQ"), len(encoded))
        struct.pack_into("<QQ", self._page, _EXAMINED_AT, started, finished)


def is_alive(pid: int) -> bool:
    from gdbext.engine.targets.system import linux  # for kernels before 5.3 alone

    return linux.is_alive(pid)


def wait_for_exit(pid: int, patience: float) -> None:
    """Wait until a process has exited, for ``patience`` seconds at most."""
    descriptors = process_descriptor(pid)
    if descriptors:
        select.select(descriptors, [], [], patience)
        os.close(descriptors[0])
        return
    deadline = time.monotonic() + patience
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.002)


def process_descriptor(pid: int) -> list[int]:
    """A file descriptor that is readable when the process has exited; empty on a Linux before 5.3."""
    try:
        return [os.pidfd_open(pid)]
    except (OSError, AttributeError):
        return []
