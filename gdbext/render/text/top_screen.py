"""dispatch-top on a terminal: a screen that is drawn anew every interval, until q."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable
from typing import TYPE_CHECKING

from gdbext.render.text import text_report

if TYPE_CHECKING:
    from gdbext.model.report import Report
    from gdbext.probes.summary import Selection

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The other screen, without a cursor (xterm's control sequences; ECMA-48)."""
_HOME, _REST = "\x1b[H", "\x1b[K\n"
_ORDERS = {"c": "count", "o": "op", "k": "key", "n": "kernel", "t": "thread", "l": "line"}
_HELP = "q quit; sort by: c count, o operator, k key, n kernel, t thread, l line"
_LINES_AROUND = 5
"""Of the screen that are no rows: headline, headings, help."""

Measure = Callable[["Selection"], "Report"]


def is_possible() -> bool:
    """Both standard input and output are a terminal that knows control sequences."""
    return os.isatty(0) and os.isatty(1) and os.environ.get("TERM", "dumb") != "dumb"


class TopScreen:
    """Draws what ``measure`` gives."""

    def __init__(self, measure: Measure, select_rows: Selection, interval: float) -> None:
        self._measure = measure
        self._select = select_rows
        self._interval = interval

    def run(self, stop: Callable[[], bool]) -> Report:
        """Until q, or ``stop`` says so; the last report."""
        before = termios.tcgetattr(0)
        sys.stdout.write(_ENTER)
        try:
            tty.setcbreak(0)
            return self._draw(stop)
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()

    def _draw(self, stop: Callable[[], bool]) -> Report:
        self._wait(stop)
        while True:
            columns, lines = shutil.get_terminal_size()
            report = self._measure(self._select._replace(limit=max(1, lines - _LINES_AROUND)))
            text = [*text_report.render(report, color=False).splitlines()[: lines - 2], "", _HELP]
            shown = "".join(line[:columns] + _REST for line in text[:lines])
            sys.stdout.write(f"{_HOME}{shown.rstrip(chr(10))}\x1b[J")
            sys.stdout.flush()
            if not self._wait(stop):
                return report

    def _wait(self, stop: Callable[[], bool]) -> bool:
        """False when it is to end. A key for another order draws at once."""
        until = time.monotonic() + self._interval
        while not stop():
            left = until - time.monotonic()
            if left <= 0:
                return True
            if not select.select([0], [], [], min(left, 0.1))[0]:
                continue
            key = os.read(0, 1).decode(errors="replace")
            if key in ("q", ""):
                return False
            if key in _ORDERS:
                self._select = self._select._replace(sort=_ORDERS[key])
                return True
        return False
