"""Files that flame graphs are drawn from: collapsed stacks, and profiles of speedscope.

Collapsed stacks (flamegraph.pl, inferno, speedscope, Firefox's profiler): a line for each stack, outermost first,
divided by ``;``, then a space and a whole number.

speedscope: https://www.speedscope.app/file-format-schema.json; "evented" profiles have an O and a C for each bar, in
order of time, "sampled" ones stacks with weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from gdbext.engine.terminal import shown_json
from gdbext.render import escape

COLLAPSED = (".collapsed", ".folded")
SPEEDSCOPE = ".speedscope.json"
"""Endings of the files' names."""
FORMATS = f"FILE{SPEEDSCOPE} or FILE{COLLAPSED[0]}"
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def is_flame_file(path: str | None) -> bool:
    """The name asks for one of the two."""
    return (path or "").endswith((SPEEDSCOPE, *COLLAPSED))


class FlameStacks:
    """Stacks with a whole number each: nanoseconds, or how often it was seen."""

    def __init__(self) -> None:
        self._weights: dict[tuple[str, ...], int] = {}

    def add(self, stack: tuple[str, ...], weight: int) -> None:
        """Add to the weight that a stack has so far; ``stack`` is outermost first."""
        self._weights[stack] = self._weights.get(stack, 0) + weight

    def text(self) -> str:
        """The collapsed stacks, in the order in which they came; those of weight 0 are left out."""
        lines = (f"{';'.join(map(_name, stack))} {weight}\n" for stack, weight in self._weights.items() if weight)
        return "".join(lines)

    def speedscope(self, name: str) -> str:
        """The same as one sampled profile, without a unit."""
        frames = _Frames()
        samples = [[frames.number(each) for each in stack] for stack in self._weights]
        weights = list(self._weights.values())
        profile = {
            "type": "sampled",
            "name": escape(name),
            "unit": "none",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": samples,
            "weights": weights,
        }
        return _document(name, frames, [profile])


def _name(frame: str) -> str:
    """A frame as it may stand in a line: no divider, no line feed."""
    return escape(frame).replace(";", ":")


class SpeedscopeProfiles:
    """Bars of several threads, each a profile of its own; in nanoseconds."""

    def __init__(self, name: str) -> None:
        self._title = name
        self._frames = _Frames()
        self._events: dict[str, list[dict[str, object]]] = {}

    def add(self, thread: str, bars: Iterable[tuple[str, int, int, int]]) -> None:
        """Bars (frame, start, end, level from 1) in order of start, which do not cross, and come after those before."""
        events = self._events.setdefault(thread, [])
        open_now: list[tuple[int, int, int]] = []

        def close(level: int) -> None:
            while open_now and open_now[-1][2] >= level:
                frame, end, _ = open_now.pop()
                events.append({"type": "C", "frame": frame, "at": end})

        for frame, start, end, level in bars:
            close(level)
            events.append({"type": "O", "frame": self._frames.number(frame), "at": start})
            open_now.append((self._frames.number(frame), end, level))
        close(0)

    def text(self) -> str:
        """The text of the whole file."""
        profiles = [
            {
                "type": "evented",
                "name": escape(thread),
                "unit": "nanoseconds",
                "startValue": events[0]["at"],
                "endValue": events[-1]["at"],
                "events": events,
            }
            for thread, events in self._events.items()
            if events
        ]
        return _document(self._title, self._frames, profiles)


class _Frames:
    """Names, each with its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a name, a new one where it is new."""
        return self._numbers.setdefault(name, len(self._numbers))

    def all(self) -> list[dict[str, str]]:
        """The table of a file."""
        return [{"name": escape(name)} for name in self._numbers]


def _document(name: str, frames: _Frames, profiles: list[dict[str, object]]) -> str:
    value = {
        "$schema": _SCHEMA,
        "name": escape(name),
        "exporter": "gdbext",
        "shared": {"frames": frames.all()},
        "profiles": profiles,
    }
    return shown_json(json.dumps(value)) + "\n"
