"""Explains and ends the tests of a test run that take too long, in the process of their watcher."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gdbext.engine.formats import whole_file
from gdbext.engine.formats.workplace import Workplace
from gdbext.engine.targets.system.linux import is_alive
from gdbext.engine.targets.system.procfs import started_at
from gdbext.engine.terminal import escape, write
from gdbext.errors import GdbextError
from gdbext.hosts.cli import launcher
from gdbext.tools import family

if TYPE_CHECKING:
    from gdbext.hosts.hang_board import TestBoard
    from gdbext.tools.family import ProcessTreeReport

_PATIENCE = 2.0
"""Seconds that each way to end a test gets: a signal that fails it, the end of its children."""
_STEM = 120
"""Bytes of a test's name in names of files: a file's may have 255 (NAME_MAX, linux/limits.h)."""


class HangingTests:
    """The tests of one process that exceed their time."""

    def __init__(self, pid: int, board: TestBoard, threshold: float, folder: str) -> None:
        self._pid = pid
        self._board = board
        self._threshold = threshold
        self._folder = folder

    def prepare(self) -> None:
        """Load what a look needs, before the test has exceeded its time."""
        family.prepare()

    def explain(self, number: int, name: str) -> None:
        """Say why the test hangs, and keep the evidence."""
        self._board.tell(number, 0)
        self._print(f"{name} has run for {self._threshold:g} s", "\n")
        file = ""
        try:
            stem = re.sub(r"[^\w.-]+", "_", name).encode("utf-8", "replace")[-_STEM:].decode("utf-8", "ignore")
            stem = stem.strip("._") or "test"
            found = family.look_at_family(self._pid, self._place(), stem, launcher.main, tell=self._print)
            text = found.text
            file = self._keep(name, found)
        except (GdbextError, OSError) as error:
            text = f"nothing can be said: {error.what if isinstance(error, GdbextError) else error}\n"
        self._print(f"{name}, in full:\n{text}", "\n")
        self._board.tell(number, number, file)

    def _place(self) -> str:
        """The folder for what is kept: the user's, or a new one where nothing can be written there."""
        try:
            Workplace(self._folder).close()
        except GdbextError as error:
            self._folder = tempfile.mkdtemp(prefix="gdbext-hangs-")
            self._print(f"{error.what}: kept in {self._folder}")
        return self._folder

    def _keep(self, name: str, found: ProcessTreeReport) -> str:
        """Write the verdict as the plugin reads it. Raises TargetError."""
        files = f"{found.path_prefix}-*"
        document = {"test": name, "summary": escape(found.summary), "text": found.text, "files": files}
        path = f"{found.path_prefix}.hang.json"
        whole_file.write(path, json.dumps(document).encode(), whole_file.PRIVATE)
        return path

    def _print(self, text: str, start: str = "") -> None:
        lines = "".join(f"gdbext: {line}\n" for line in text.rstrip().split("\n"))
        try:
            write(2, f"{start}{lines}")
        except OSError:
            return

    def end(self, number: int, began: float, request: int) -> None:
        """Fail the test; failing that, end the children that it started, and at last its process. None is left."""
        started = _started_since(began, self._others())  # not later, when the next test has started its own
        for number_of_signal in (request, signal.SIGCONT):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self._pid, number_of_signal)
        has_ended = self._has_ended(number)
        family.end_processes(started, 0.0, signal.SIGKILL)
        if has_ended or self._has_ended(number):
            return
        self._print("the test cannot be failed: its process is ended", "\n")
        family.end_processes([self._pid, *self._others()], 0.0, signal.SIGKILL)

    def _others(self) -> list[int]:
        return [each for each in family.descendants(self._pid) if each != os.getpid()]

    def _has_ended(self, number: int) -> bool:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            test = self._board.running()
            if not test or test[0] != number or not is_alive(self._pid):
                return True
            time.sleep(0.02)
        return False


def _started_since(moment: float, pids: list[int]) -> list[int]:
    """Those that were started since that moment of the monotonic clock, or less than a tick of the kernel's before."""

    since = moment + time.time() - time.monotonic() - 1 / os.sysconf("SC_CLK_TCK")
    return [pid for pid in pids if (began := started_at(pid)) is not None and began >= since]
