"""Typed members of a JSON object that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from gdbext.errors import BadRecording

Value = TypeVar("Value")

MAX_ITEMS = 1 << 20
"""More members or items of one kind are damage, or a file made to exhaust us."""
WORD = (1 << 64) - 1


class Fields:
    """A JSON object; every reader raises BadRecording, naming the member, where it is not what it must be."""

    def __init__(self, value: Any, name: str = "the document") -> None:
        if not isinstance(value, dict):
            raise BadRecording(f"{name} of the recording is not a JSON object")
        self._members: dict[str, Any] = value
        self._name = name

    def text(self, name: str) -> str:
        """A string."""
        value: str = self._get(name, is_text)
        return value

    def optional_text(self, name: str) -> str | None:
        """A string, or null."""
        return None if self.is_null(name) else self.text(name)

    def number(self, name: str, low: int = 0, high: int = WORD) -> int:
        """A whole number from ``low`` to ``high``."""
        value: int = self._get(name, lambda value: is_number(value, low, high))
        return value

    def optional_number(self, name: str, low: int = 0, high: int = WORD) -> int | None:
        """A whole number in these limits, or null."""
        return None if self.is_null(name) else self.number(name, low, high)

    def is_null(self, name: str) -> bool:
        """The member is null, or not there."""
        return self._members.get(name) is None

    def items(self, name: str) -> Iterator[Any]:
        """The items of an array."""
        yield from self._get(name, lambda value: isinstance(value, list) and len(value) <= MAX_ITEMS)

    def objects(self, name: str) -> Iterator[Fields]:
        """The items of an array of objects."""
        for item in self.items(name):
            yield Fields(item, f"an item of {name!r}")

    def object(self, name: str) -> Fields:
        """An object."""
        return Fields(self._members.get(name), f"{name!r}")

    def members(self) -> Iterator[tuple[str, Any]]:
        """All members, by name."""
        if len(self._members) > MAX_ITEMS:
            raise BadRecording(f"{self._name} of the recording has {len(self._members)} members")
        yield from self._members.items()

    def texts(self) -> dict[str, str]:
        """All members, which must be strings."""
        return self._all(is_text)

    def numbers(self) -> dict[str, int]:
        """All members, which must be unsigned 64-bit numbers."""
        return self._all(is_number)

    def _all(self, check: Callable[[Any], bool]) -> dict[str, Any]:
        for name, value in self.members():
            if not check(value):
                raise self._refusal(name)
        return self._members

    def _get(self, name: str, check: Callable[[Any], bool]) -> Any:
        value = self._members.get(name)
        if not check(value):
            raise self._refusal(name)
        return value

    def _refusal(self, name: str) -> BadRecording:
        return BadRecording(f"{name[:80]!r} in {self._name} of the recording is missing, or not what it must be")


def is_text(value: Any) -> bool:
    """A JSON string."""
    return isinstance(value, str)


def is_number(value: Any, low: int = 0, high: int = WORD) -> bool:
    """A JSON number without a fraction, in these limits."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_flag(value: Any) -> bool:
    """true or false."""
    return isinstance(value, bool)
