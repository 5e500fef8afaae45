"""Files for flame graphs: collapsed stacks (flamegraph.pl, inferno, Firefox's profiler) and speedscope's profiles.

Collapsed stacks are lines: frames, outermost first, divided by ``;``, then a space and a whole number. In speedscope's
format (https://www.speedscope.app/file-format-schema.json), "evented" profiles have an O and a C event for each bar in
order of time, "sampled" ones stacks with weights.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from gdbext.engine.terminal import shown_json
from gdbext.render import escape

COLLAPSED = (".collapsed", ".folded")
SPEEDSCOPE = ".speedscope.json"
"""Endings of the files' names."""
FORMATS = f"FILE{SPEEDSCOPE} or FILE{COLLAPSED[0]}"


def is_flame_file(path: str | None) -> bool:
    """True if the file's name has one of these endings."""
    return (path or "").endswith((SPEEDSCOPE, *COLLAPSED))


class FlameStacks:
    """Stacks with a weight each: nanoseconds, or a count."""

    def __init__(self) -> None:
        self._weights: Counter[tuple[str, ...]] = Counter()

    def add(self, stack: tuple[str, ...], weight: int) -> None:
        """Add to the weight of a stack, which is outermost first."""
        self._weights[stack] += weight

    def text(self) -> str:
        """The collapsed stacks, in the order in which they were added; those of weight 0 are left out."""
        lines = []
        for stack, weight in self._weights.items():
            frames = ";".join(escape(frame).replace(";", ":") for frame in stack)
            lines += [f"{frames} {weight}\n"] if weight else []
        return "".join(lines)

    def speedscope(self, name: str) -> str:
        """The stacks as the JSON text of one sampled profile, without a unit."""
        numbers: dict[str, int] = {}
        samples = [[numbers.setdefault(frame, len(numbers)) for frame in stack] for stack in self._weights]
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
        return _document(name, numbers, [profile])


class SpeedscopeProfiles:
    """The bars of several threads, as a profile for each; in nanoseconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._numbers: dict[str, int] = {}  # frame → its number in the file's list of frames
        self._events: dict[str, list[dict[str, object]]] = {}  # thread → its events in order of time

    def add(self, thread: str, bars: Iterable[tuple[str, int, int, int]]) -> None:
        """Add a thread's bars (frame, start, end, level from 1), which are in order of start, do not cross, and begin
        after those of earlier calls."""
        events = self._events.setdefault(thread, [])
        open_bars: list[tuple[int, int, int]] = []

        def close(level: int) -> None:
            """Write the ends of the open bars of this level and deeper ones."""
            while open_bars and open_bars[-1][2] >= level:
                number, end, _ = open_bars.pop()
                events.append({"type": "C", "frame": number, "at": end})

        for frame, start, end, level in bars:
            close(level)
            number = self._numbers.setdefault(frame, len(self._numbers))
            events.append({"type": "O", "frame": number, "at": start})
            open_bars.append((number, end, level))
        close(0)

    def text(self) -> str:
        """The JSON text of the file."""
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
        return _document(self._title, self._numbers, profiles)


def _document(title: str, frames: Iterable[str], profiles: list[dict[str, object]]) -> str:
    """The JSON text of a speedscope file."""
    value = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": escape(title),
        "exporter": "gdbext",
        "shared": {"frames": [{"name": escape(frame)} for frame in frames]},
        "profiles": profiles,
    }
    return shown_json(json.dumps(value)) + "\n"
