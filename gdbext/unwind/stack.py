"""The stack of one thread: its native frames, unwound once, with their functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gdbext.model.absent import Absent
from gdbext.process.symbols import Function, Symbolizer
from gdbext.unwind.native_frame import NativeFrame
from gdbext.unwind.unwinder import END_OF_STACK, Unwinder

MAX_FRAMES = 200_000
"""Frames kept of one stack. An 8 MB stack holds at most 500,000 frames of 16 bytes; real ones are far larger."""


class Stack:
    """Frames innermost first; functions are looked up when asked for."""

    def __init__(self, frames: list[NativeFrame], outer: Absent | None, symbolizer: Symbolizer) -> None:
        self.frames = frames
        self.outer = outer
        """Why further frames are missing ("no CFI at 0x…", "truncated at N frames"), None for a whole stack."""
        self.floats: Callable[[], Mapping[str, int]] = dict
        """Vector registers of the innermost frame, for whoever asks."""
        self._symbolizer = symbolizer
        self._path: tuple[int, ...] | None = None

    @classmethod
    def walk(
        cls, registers: Mapping[str, int], unwinder: Unwinder, symbolizer: Symbolizer, limit: int = MAX_FRAMES
    ) -> Stack:
        """Unwinds from ``registers``. Never raises for what is on the stack: the walk ends and says why."""
        frames = unwinder.stack(registers, limit)
        if len(frames) >= limit:
            return cls(frames, Absent(f"truncated at {limit} frames"), symbolizer)
        whole = unwinder.stopped is END_OF_STACK
        return cls(frames, None if whole else Absent(unwinder.stopped), symbolizer)

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def path(self) -> tuple[int, ...]:
        """The program counters: threads of a pool often share them, and what only these decide is found out once."""
        if self._path is None:
            self._path = tuple(frame.pc for frame in self.frames)
        return self._path

    def function(self, level: int) -> Function | None:
        """The function of frame ``level``, None where no symbol covers its pc."""
        return self._symbolizer.function(self.frames[level].lookup_pc)
