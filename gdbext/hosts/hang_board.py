"""The page of memory by which the process of a test run tells its watcher which test runs, and since when.

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
"""The same in two parts: the number is written last, when the rest is that of its test."""
_NAME = _RUNNING.size
_now = time.monotonic
_LOOKED = struct.Struct("<QQI")
"""Numbers of the tests that the watcher began to examine and has examined, length of the name of the file."""
_LOOKED_LENGTH = struct.calcsize("<QQ")
_LOOKS_AT = mmap.PAGESIZE
_LONGEST = 3000
"""Bytes of a name that are told."""
SIGNAL = 62
"""The signal by which a test is asked to fail, SIGRTMAX - 2; real-time signals are rarely used."""


class TestBoard:
    """The shared page. The test's process writes the first half, the watcher the second."""

    __test__ = False
    """pytest shall not take it for a test."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, SIZE)
        self._note, self._publish = _START_AND_LENGTH.pack_into, _NUMBER.pack_into
        self.number = 0
        """The number of the test that runs (odd), or one more than that of the one that ran last."""

    @property
    def looks_at(self) -> tuple[mmap.mmap, int]:
        """The page, and the place of a byte in it that is not zero once the watcher has looked at any test: the lowest
        byte of an odd number."""
        return self._page, _LOOKS_AT

    def begin(self, name: str) -> None:
        """Note that a test begins now."""
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
        """Number, start and name of the test that runs; None where none does."""
        number, began, length = _RUNNING.unpack_from(self._page, 0)
        name = self._page[_RUNNING.size : _RUNNING.size + min(length, _LONGEST)]
        if number % 2 == 0 or _RUNNING.unpack_from(self._page, 0)[0] != number:
            return None
        return number, began, name.decode("utf-8", "replace")

    def looks(self) -> bool:
        """The watcher has begun to look at the test that runs, or that ran last."""
        if not self._page[_LOOKS_AT]:
            return False
        begun: int = _LOOKED.unpack_from(self._page, _LOOKS_AT)[0]
        return self.number != 0 and begun == (self.number | 1) - (2 if self.number % 2 == 0 else 0)

    def file(self, patience: float) -> str:
        """The file with the verdict on that test, which may still be made; "" where none comes."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            begun, done, length = _LOOKED.unpack_from(self._page, _LOOKS_AT)
            if begun == done:
                start = _LOOKS_AT + _LOOKED.size
                return os.fsdecode(self._page[start : start + length])
            time.sleep(0.02)
        return ""

    def tell(self, begun: int, done: int, file: str = "") -> None:
        """Write which test the watcher has begun to examine, which it has examined, and the file with its verdict."""
        encoded = os.fsencode(file)[:_LONGEST]
        start = _LOOKS_AT + _LOOKED.size
        self._page[start : start + len(encoded)] = encoded
        struct.pack_into(
            "<I", self._page, _LOOKS_AT + _LOOKED_LENGTH, len(encoded)
        )  # before the numbers that vouch for it
        struct.pack_into("<QQ", self._page, _LOOKS_AT, begun, done)


def is_alive(pid: int) -> bool:
    """The process has not ended."""
    from gdbext.engine.targets.system import linux  # for kernels before 5.3 alone

    return linux.is_alive(pid)


def has_ended(pid: int, patience: float) -> bool:
    """Wait until a process has ended, for ``patience`` seconds at most."""
    descriptors = process_descriptor(pid)
    deadline = time.monotonic() + patience
    if descriptors:
        ended = bool(select.select(descriptors, [], [], patience)[0])
        os.close(descriptors[0])
        return ended
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    return not is_alive(pid)


def process_descriptor(pid: int) -> list[int]:
    """A descriptor that can be read when the process has ended; none on a Linux before 5.3."""
    try:
        return [os.pidfd_open(pid)]
    except (OSError, AttributeError):
        return []
