"""Rendering: styled text, colored Python source, HTML pages, records as plain JSON."""

from __future__ import annotations

import re
import site
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.terminal import MARKS, escape
from gdbext.engine.vocabulary import counted

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Style", "counted", "escape"]
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Style(NamedTuple):
    """Adds marks to text, which engine/terminal.py turns into colors: ``style(text, "bold", "red")``. ``Style()``
    leaves the text plain."""

    color: bool = False

    def __call__(self, text: str, *effects: str) -> str:
        if not self.color or not effects:
            return text
        return f"{''.join(MARKS[_CODES[effect]] for effect in effects)}{text}{MARKS['0']}"


def short_name(function: str) -> str:
    """A C++ function's name without anonymous namespaces, which nearly all kernels are in."""
    unnamed = "(anonymous namespace)::"
    return function.replace("at::" + unnamed, "").replace(unnamed, "") or function


def python_source(line: str, style: Style) -> str:
    """One line of Python, highlighted if the style has colors and pygments is installed."""
    text = escape(line)
    highlighter = _highlighter() if style.color else None
    return highlighter(text) if highlighter else text


@lru_cache(maxsize=1)
def _highlighter() -> Callable[[str], str] | None:
    """A function that colors one line of Python, None without pygments, which takes 40 ms to import."""
    import_path = list(sys.path)
    try:
        if sys.flags.no_site:  # scripts/dispatch runs without site-packages (-I -S)
            sys.path.extend(site.getsitepackages())
        from pygments import formatters, highlight, lexers

        lexer, formatter = lexers.PythonLexer(stripnl=False, ensurenl=False), formatters.TerminalFormatter()
    except ImportError:
        return None
    finally:
        sys.path[:] = import_path

    def marks(sequence: re.Match[str]) -> str:
        """The marks for a color sequence of pygments; 39 ends a color."""
        codes = [code.lstrip("0") or "0" for code in sequence[1].split(";")]
        return MARKS["0"] if "39" in codes else "".join(MARKS[code] for code in codes if code in MARKS)

    return lambda line: re.sub("\x1b\\[([0-9;]*)m", marks, highlight(line, lexer, formatter))
