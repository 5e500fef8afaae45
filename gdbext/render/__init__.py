"""The rendering kit: styled text, tables, HTML pages, records as plain JSON.

Colour where it is a terminal, also of Python source, and text from the target made harmless.
"""

from __future__ import annotations

import contextlib
import re
import site
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.terminal import MARKS, escape
from gdbext.engine.vocabulary import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Style", "counted", "escape"]
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Style(NamedTuple):
    """The decoration of text; ``Style()`` is plain. Colours are marks, which the door to the terminal turns into
    colours (engine/terminal.py)."""

    color: bool = False

    def __call__(self, text: str, *effects: str) -> str:
        if not self.color or not effects:
            return text
        return f"{''.join(MARKS[_CODES[effect]] for effect in effects)}{text}{MARKS['0']}"


_SEQUENCE = re.compile("\x1b\\[([0-9;]*)m")


def short_name(function: str) -> str:
    """The name as a table has it: without the unnamed namespaces that nearly all kernels are in."""
    return function.replace("at::" + _UNNAMED, "").replace(_UNNAMED, "") or function


_UNNAMED = "(anonymous namespace)::"


def python_source(line: str, style: Style) -> str:
    """One line of Python for this style: highlighted on a terminal that has pygments, else as it is."""
    text = escape(line)
    highlighter = _highlighter() if style.color else None
    return highlighter(text) if highlighter else text


@lru_cache(maxsize=1)
def _highlighter() -> Callable[[str], str] | None:
    """Imported when the first line is shown: 40 ms that a report in a pipe need not pay."""
    try:
        with _site_packages():
            from gdbext.render.python_highlighter import highlighted  # pygments may be missing
    except ImportError:
        return None
    return lambda line: _SEQUENCE.sub(_marks, highlighted(line))


def _marks(sequence: re.Match[str]) -> str:
    """The marks for a sequence of pygments' (the line itself has none any more); 39, 49: no colour."""
    codes = [code.lstrip("0") or "0" for code in sequence[1].split(";")]
    return MARKS["0"] if "39" in codes else "".join(MARKS[code] for code in codes if code in MARKS)


@contextlib.contextmanager
def _site_packages() -> Iterator[None]:
    """The interpreter's own site-packages on the import path for a moment: scripts/dispatch runs without (-I -S)."""
    before = list(sys.path)
    if sys.flags.no_site:
        sys.path.extend(site.getsitepackages())
    try:
        yield
    finally:
        sys.path[:] = before
