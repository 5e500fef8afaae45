"""Python source in colour, by pygments where it is installed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache

from gdbext.render.text.style import Style, escape


def python_source(line: str, style: Style) -> str:
    """One line of Python for this style: highlighted on a terminal that has pygments, else as it is."""
    text = escape(line)
    highlighter = _highlighter() if style.color else None
    return highlighter(text) if highlighter is not None else text


@lru_cache(maxsize=1)
def _highlighter() -> Callable[[str], str] | None:
    """Imported when the first line is shown: 40 ms that a report in a pipe need not pay."""
    try:
        with _site_packages():
            from pygments import highlight
            from pygments.formatters.terminal import TerminalFormatter
            from pygments.lexers.python import PythonLexer
    except ImportError:
        return None
    lexer, formatter = PythonLexer(stripnl=False, ensurenl=False), TerminalFormatter()
    return lambda line: str(highlight(line, lexer, formatter))


@contextlib.contextmanager
def _site_packages() -> Iterator[None]:
    """The interpreter's own site-packages on the import path for a moment: scripts/dispatch runs without (-I -S)."""
    before = list(sys.path)
    if sys.flags.no_site:
        import site

        sys.path.extend(site.getsitepackages())
    try:
        yield
    finally:
        sys.path[:] = before
