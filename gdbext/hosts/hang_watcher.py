"""The watcher of a test run: a process of its own, which explains a test that takes too long, and may end it.

The test's process tells it by a page of shared memory (``TestBoard``), so that a test costs two stores there and no
call of the kernel, and a process that is stopped, or holds the GIL, is watched like any other. Nothing is imported
here that a watcher which never has to look does not need.
"""

from __future__ import annotations

import mmap
import os
import re
import select
import struct
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from gdbext.tools.family import FamilyEvidence

SIZE = 2 * mmap.PAGESIZE
_RUNNING = struct.Struct("<QdI")
"""Number of the test (odd while it runs), its start on the monotonic clock, length of its name, which follows."""
_NAME = _RUNNING.size
_now = time.monotonic
_LOOKED = struct.Struct("<QQI")
"""Numbers of the tests that the watcher began to look at and has looked at, length of the name of the file."""
_LOOKS_AT = mmap.PAGESIZE
_LONGEST = 3000
"""Bytes of a name that are told."""
_STEM = 120
"""Bytes of a test's name in names of files: a file's may have 255 (NAME_MAX, linux/limits.h)."""
_POLL = 0.25
"""Seconds between two looks at the board."""
PATIENCE = 2.0
"""Seconds that each way to end a test gets: a signal that fails it, the end of its children."""
SIGNAL = 62
"""The signal by which a test is asked to fail, SIGRTMAX - 2; real-time signals are rarely used."""


class TestBoard:
    """The shared page. The test's process writes the first half, the watcher the second."""

    __test__ = False
    """pytest shall not take it for a test."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, SIZE)
        self._note = _RUNNING.pack_into
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
        self._note(self._page, 0, number, _now(), length)

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
        """Told by the watcher: the tests that it has begun to look at and has looked at."""
        encoded = os.fsencode(file)[:_LONGEST]
        start = _LOOKS_AT + _LOOKED.size
        self._page[start : start + len(encoded)] = encoded
        _LOOKED.pack_into(self._page, _LOOKS_AT, begun, done, len(encoded))


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
        waits = [0, *_process_descriptor(self._pid)]
        while self._goes_on(waits, handled):
            test = self._board.running()
            if not test or test[0] == handled:
                continue
            if prepared != test[0] and time.monotonic() - test[1] > self._threshold / 2:
                prepared = test[0]
                _family().prepare()
            if time.monotonic() - test[1] >= self._threshold:
                handled = test[0]
                self._explain(handled, test[2])
                if self._kills:
                    self._end(handled, test[1])

    def _goes_on(self, waits: list[int], handled: int) -> bool:
        """Wait until the board is to be looked at again; false where the process or its run has ended."""
        if select.select(waits, [], [], self._pause(handled))[0]:
            return False
        return len(waits) > 1 or _is_alive(self._pid)

    def _pause(self, handled: int) -> float:
        """Seconds until the board is looked at again: at the latest when the test that runs exceeds its time."""
        test = self._board.running()
        if not test or test[0] == handled:
            return _POLL
        return min(_POLL, max(0.01, test[1] + self._threshold - time.monotonic()))

    def _explain(self, number: int, name: str) -> None:
        from gdbext.errors import GdbextError
        from gdbext.hosts.cli import launcher

        self._board.tell(number, 0)
        self._print(f"{name} has run for {self._threshold:g} s", "\n")
        file = ""
        try:
            stem = re.sub(r"[^\w.-]+", "_", name).encode("utf-8", "replace")[-_STEM:].decode("utf-8", "ignore")
            stem = stem.strip("._") or "test"
            found = _family().look_at_family(self._pid, self._place(), stem, launcher.main, tell=self._print)
            text = found.text
            file = self._keep(name, found)
        except GdbextError as error:
            text = f"nothing can be said: {error.what}\n"
        self._print(f"{name}, in full:\n{text}", "\n")
        self._board.tell(number, number, file)

    def _place(self) -> str:
        """The folder for what is kept: the user's, or a new one where nothing can be written there."""
        from gdbext.engine.formats.workplace import Workplace
        from gdbext.errors import GdbextError

        try:
            Workplace(self._folder).close()
        except GdbextError as error:
            import tempfile

            self._folder = tempfile.mkdtemp(prefix="gdbext-hangs-")
            self._print(f"{error.what}: kept in {self._folder}")
        return self._folder

    def _keep(self, name: str, found: FamilyEvidence) -> str:
        """Write the verdict as the plugin reads it. Raises TargetError."""
        import json

        from gdbext.engine.formats import whole_file
        from gdbext.engine.terminal import escape

        document = {"test": name, "summary": escape(found.summary), "text": found.text, "files": f"{found.start}-*"}
        path = f"{found.start}.hang.json"
        whole_file.write(path, json.dumps(document).encode(), whole_file.PRIVATE)
        return path

    def _print(self, text: str, start: str = "") -> None:
        from gdbext.engine.terminal import write

        lines = "".join(f"gdbext: {line}\n" for line in text.rstrip().split("\n"))
        try:
            write(2, f"{start}{lines}")
        except OSError:
            return

    def _end(self, number: int, began: float) -> None:
        """Fail the test; failing that, end the children that it started, and at last its process. None is left."""
        import signal

        started = _started_since(began, self._others())  # not later, when the next test has started its own
        for number_of_signal in (SIGNAL, signal.SIGCONT):
            os.kill(self._pid, number_of_signal)
        has_ended = self._has_ended(number)
        _family().end_processes(started, 0.0, signal.SIGKILL)
        if has_ended or self._has_ended(number):
            return
        self._print("the test cannot be failed: its process is ended", "\n")
        _family().end_processes([self._pid, *self._others()], 0.0, signal.SIGKILL)

    def _others(self) -> list[int]:
        return [each for each in _family().descendants(self._pid) if each != os.getpid()]

    def _has_ended(self, number: int) -> bool:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            test = self._board.running()
            if not test or test[0] != number or not _is_alive(self._pid):
                return True
            time.sleep(0.02)
        return False


def _family() -> ModuleType:
    """The module that looks at processes, imported when a test takes long."""
    from gdbext.tools import family

    return family


def _is_alive(pid: int) -> bool:
    from gdbext.engine.targets.system.linux import is_alive

    return is_alive(pid)


def has_ended(pid: int, patience: float) -> bool:
    """Wait until a process has ended, for ``patience`` seconds at most."""
    descriptors = _process_descriptor(pid)
    deadline = time.monotonic() + patience
    if descriptors:
        ended = bool(select.select(descriptors, [], [], patience)[0])
        os.close(descriptors[0])
        return ended
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    return not _is_alive(pid)


def _process_descriptor(pid: int) -> list[int]:
    """A descriptor that can be read when the process has ended; none on a Linux before 5.3."""
    try:
        return [os.pidfd_open(pid)]
    except (OSError, AttributeError):
        return []


def _started_since(moment: float, pids: list[int]) -> list[int]:
    """Those that were started since that moment of the monotonic clock, or less than a tick of the kernel's before."""
    from gdbext.engine.targets.system.procfs import started_at

    since = moment + time.time() - time.monotonic() - 1 / os.sysconf("SC_CLK_TCK")
    return [pid for pid in pids if (began := started_at(pid)) is not None and began >= since]


def main() -> None:
    """Watch process ``argv[1]``, whose board is descriptor ``argv[2]``, until it ends."""
    pid, board, threshold, folder, kills = sys.argv[1:6]
    watcher = HangWatcher(int(pid), TestBoard(int(board)), float(threshold), folder, bool(kills))
    watcher.run()
