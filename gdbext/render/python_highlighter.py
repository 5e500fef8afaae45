"""Python source in colors, by pygments. Raises ImportError where that is not installed."""

from __future__ import annotations

from pygments import highlight
from pygments.formatters.terminal import TerminalFormatter
from pygments.lexers.python import PythonLexer

_LEXER, _FORMATTER = PythonLexer(stripnl=False, ensurenl=False), TerminalFormatter()


def highlighted(line: str) -> str:
    """The line with escape sequences for a terminal."""
    return str(highlight(line, _LEXER, _FORMATTER))
