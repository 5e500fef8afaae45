"""Explains and kills the tests of a test run that take too long, in the process of their watcher."""

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

_PATIENCE = 2.0
"""Seconds to wait after each attempt to end a test: a signal that fails it, a kill of its children."""


class HangingTests:
    """The tests of one process that exceed their time."""

    def __init__(self, pid: int, board: TestBoard, threshold: float, folder: str) -> None:
        self._pid = pid
        self._board = board
        self._threshold = threshold
        self._folder = folder

    def prepare(self) -> None:
        """Load the modules while the test may still end in time."""
        family.prepare()

    def explain(self, number: int, name: str) -> None:
        """Print why the test hangs, and write the verdict and the recordings. ``number`` is the board's of the test."""
        self._board.note_examined(number, 0)
        self._print(f"{name} has run for {self._threshold:g} s", "\n")
        file = ""
        try:
            # 120 bytes: a file's name may have 255 (NAME_MAX, linux/limits.h)
            stem = re.sub(r"[^\w.-]+", "_", name).encode("utf-8", "replace")[-120:].decode("utf-8", "ignore")
            stem = stem.strip("._") or "test"
            evidence = family.diagnose_tree(self._pid, self._writable_folder(), stem, launcher.main, tell=self._print)
            text = evidence.text
            document = {
                "test": name,
                "summary": escape(evidence.summary),
                "text": text,
                "files": f"{evidence.path_prefix}-*",
            }
            path = f"{evidence.path_prefix}.hang.json"
            whole_file.write(path, json.dumps(document).encode(), whole_file.PRIVATE)  # as the plugin reads it
            file = path
        except (GdbextError, OSError) as error:
            text = f"no verdict: {error.what if isinstance(error, GdbextError) else error}\n"
        self._print(f"{name}, in full:\n{text}", "\n")
        self._board.note_examined(number, number, file)

    def _writable_folder(self) -> str:
        """The folder for verdicts and recordings: the user's, or a new one if that cannot be written to."""
        try:
            Workplace(self._folder).close()
        except GdbextError as error:
            self._folder = tempfile.mkdtemp(prefix="gdbext-hangs-")
            self._print(f"{error.what}: kept in {self._folder}")
        return self._folder

    def _print(self, text: str, start: str = "") -> None:
        """Write lines to standard error, each marked as ours, after the text ``start``."""
        lines = "".join(f"gdbext: {line}\n" for line in text.rstrip().split("\n"))
        with suppress(OSError):
            write(2, f"{start}{lines}")

    def kill(self, number: int, began: float, request: int) -> None:
        """Fail the test by the signal ``request`` and kill the children that it started since ``began`` (monotonic
        clock); if it does not end, kill its process."""
        # Processes that were started since the test began, or less than a tick of the kernel's before; not later, when
        # the next test has started its own.
        since = began + time.time() - time.monotonic() - 1 / os.sysconf("SC_CLK_TCK")
        starts = {pid: started_at(pid) for pid in self._children()}
        new_children = [pid for pid, start in starts.items() if start is not None and start >= since]
        for signal_number in (request, signal.SIGCONT):
            with suppress(ProcessLookupError):  # it has exited meanwhile
                os.kill(self._pid, signal_number)
        has_ended = self._wait_for_end(number)
        family.end_processes(new_children, 0.0, signal.SIGKILL)
        if has_ended or self._wait_for_end(number):
            return
        self._print("the test could not be failed: its process is killed", "\n")
        family.end_processes([self._pid, *self._children()], 0.0, signal.SIGKILL)

    def _children(self) -> list[int]:
        """The descendants of the test's process, without this one."""
        return [pid for pid in family.descendants(self._pid) if pid != os.getpid()]

    def _wait_for_end(self, number: int) -> bool:
        """True as soon as the test has ended, False if it has not within _PATIENCE."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            test = self._board.running()
            if not test or test[0] != number or not is_alive(self._pid):
                return True
            time.sleep(0.02)
        return False
