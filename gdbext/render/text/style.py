"""Colour where it is a terminal, and text from the target made harmless."""

from __future__ import annotations

from gdbext.model.record import Record

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Style(Record):
    """How text is decorated; ``Style()`` is plain."""

    color: bool = False

    def __call__(self, text: str, *effects: str) -> str:
        if not self.color or not effects:
            return text
        codes = ";".join(_CODES[effect] for effect in effects)
        return f"\x1b[{codes}m{text}\x1b[0m"


def escape(text: str) -> str:
    """``text`` with control characters escaped, so that no operator's name can drive a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
