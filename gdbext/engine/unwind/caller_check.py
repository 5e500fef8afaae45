"""Checks whether a frame was called from inside another, by walking from one to the other with call frame information.

Addresses alone do not prove it: after a dispatch has returned, a deeper stack may cover its frame, and old words
survive in holes of newer frames. The walk is cheap enough for every stop: one read of the stack between the two frames,
and for each frame one lookup of a prepared step.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.unwind import END_OF_STACK, Unwinder
from gdbext.engine.unwind.unwind_row import Registers
from gdbext.errors import BadData, MemoryFault

if TYPE_CHECKING:
    from gdbext.engine.unwind.unwind_row import ReadMemory

SPAN_LIMIT = 1 << 20  # most bytes of stack between two dispatches
FRAME_LIMIT = 4000

_word = struct.Struct("<Q").unpack_from

IsOpen = Callable[[int], bool]
"""An address in a function's code → True if the operation that the function began at the stop is not over there."""


class StopPlace(NamedTuple):
    """A stop at ``pc`` in the function [start, end), or in one that may leave by a tail call if ``start`` is 0;
    ``size`` is that of its frame (CfaRule.size). ``is_open`` None: the operation lasts until the function returns."""

    pc: int
    start: int
    end: int
    size: int
    is_open: IsOpen | None = None


class CallerCheck(NamedTuple):
    """A frame to search for: its CFA, and its code [start, end).

    If the function may have left by a tail call, its frame can have other code; then ``start`` is 0 and the return
    address must be ``returns_to``. ``is_open`` gets the address in the frame to which its callee returns.
    """

    cfa: int
    start: int
    end: int
    returns_to: int
    is_open: IsOpen | None = None


class CallerWalk:
    """Walks the stack of the thread that is stopped now."""

    def __init__(
        self, architecture: Architecture, unwinder: Unwinder, read: ReadMemory, frame_pointer: Callable[[], int]
    ) -> None:
        """``read`` reads the stack as it is now, ``frame_pointer`` that register of the selected thread."""
        self._architecture = architecture
        self._pc, self._sp = architecture.program_counter, architecture.stack_pointer
        self._fp = architecture.frame_pointer
        self._unwinder = unwinder
        self._read = read
        self._frame_pointer = frame_pointer

    def return_address(self, cfa: int) -> int:
        """The return address of the frame that ends at ``cfa``. Raises MemoryFault."""
        return self._architecture.return_address(self._read, cfa)

    def inside(self, pc: int, cfa: int, ancestor: CallerCheck) -> bool | None:
        """True if the frame of code ``pc`` that ends at ``cfa`` was called from inside ``ancestor``, a frame further
        up; None if the ancestor's return address is still on the stack, but the walk does not get there: it meets
        code without call frame information, or a damaged stack. Raises MemoryFault.
        """
        top = ancestor.cfa
        if not 0 <= top - cfa < SPAN_LIMIT:
            return False
        callers, known = self.callers(pc, cfa, top)
        if known < top:
            return None if self.return_address(top) == ancestor.returns_to else False
        if top not in callers or (ancestor.is_open and not ancestor.is_open(callers[top])):
            return False
        if ancestor.start:
            return ancestor.start <= callers[top] - 1 < ancestor.end
        return self.return_address(top) == ancestor.returns_to

    def callers(self, pc: int, cfa: int, top: int) -> tuple[dict[int, int], int]:
        """The frames that called the frame of code ``pc`` that ends at ``cfa``, up to the stack address ``top``: (CFA
        of each → address in its code to which its callee returns, address up to which these are all). Raises
        MemoryFault."""
        stack = _StackPiece(self._read, cfa - 128, top)  # the inner frame's saved registers are below its CFA
        callers: dict[int, int] = {}
        current = cfa
        walk = self._unwinder.walk(self._caller(pc, cfa, stack), stack.read, exact=False, guess=False)
        for frame in islice(walk, FRAME_LIMIT):
            if frame.cfa <= current:  # 0: unknown
                # A frame whose saved registers are above the top ends above it.
                return callers, top if stack.is_exceeded else current
            current = frame.cfa
            callers[current] = frame.pc
            if current >= top:
                break
        return callers, top if self._unwinder.stopped is END_OF_STACK else current

    def _caller(self, pc: int, cfa: int, stack: _StackPiece) -> Registers:
        """The registers of the caller of the frame that ends at ``cfa``; pc, sp and frame pointer at least."""
        registers = {self._sp: cfa, self._pc: stack.word(self._architecture.return_slot(cfa))}
        row = self._unwinder.steps.at(pc, exact=True).row
        if not row or self._fp not in row.saves:
            registers[self._fp] = self._frame_pointer()
            return registers
        with suppress(KeyError, BadData, MemoryFault):
            registers.update(row.caller({}, stack.read, cfa)[1])
        return registers


class _StackPiece:
    """The stack between two frames, read once."""

    def __init__(self, read: ReadMemory, low: int, high: int) -> None:
        """Read the stack from ``low`` to ``high``. Raises MemoryFault."""
        self.is_exceeded = False  # the last read was of memory above it
        self._low = low
        self._data = read(low, high - low)

    def read(self, address: int, size: int) -> bytes:
        """The bytes at an address. Raises MemoryFault outside the piece, and sets ``is_exceeded`` above it."""
        start = address - self._low
        data = self._data[start : start + size] if start >= 0 else b""
        if len(data) < size:
            self.is_exceeded = 0 <= start - len(self._data) < SPAN_LIMIT
            raise MemoryFault(address, size)
        return data

    def word(self, address: int) -> int:
        return int(_word(self._data, address - self._low)[0])
