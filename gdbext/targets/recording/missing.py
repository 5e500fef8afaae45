"""What was asked of a recording and is not in it."""

from __future__ import annotations


class Missing:
    """Counts each place once, so that a report can say how much it lacks and of what."""

    def __init__(self) -> None:
        self._places: dict[str, set[object]] = {}

    def note(self, kind: str, place: object) -> None:
        """``kind`` is a plural: "pages of memory", "parts of libc.so.6"."""
        self._places.setdefault(kind, set()).add(place)

    def __bool__(self) -> bool:
        return bool(self._places)

    def __str__(self) -> str:
        return ", ".join(f"{kind} ({len(places)})" for kind, places in sorted(self._places.items()))
