"""Whether a frame was called from inside another: a walk from one to the other, over call frame information.

Addresses alone do not tell. After a dispatch has returned, a deeper stack may cover its place, and old words survive in
holes of newer frames. So the frames between the two are walked. That is cheap enough for every stop: one read of the
stack between them, and for each frame one look-up of a prepared rule.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from gdbext.arch.base import Architecture
from gdbext.errors import BadData, MemoryFault
from gdbext.formats.cfi_program import OFFSET, SAME, Row, row_at
from gdbext.process.memory import Memory
from gdbext.process.modules import Module, ModuleTable
from gdbext.unwind.frame_tables import FrameTable, frame_table

SPAN_LIMIT = 1 << 20
"""Bytes of stack between two dispatches that are looked at."""
FRAME_LIMIT = 4000

_word = struct.Struct("<Q").unpack_from
_SLACK = 8

ReadStack = Callable[[int, int], bytes]


class Rule(NamedTuple):
    """One step up: the CFA is the stack or the frame pointer + ``offset``; the frame pointer is saved at CFA +
    ``saved``, or unchanged (0)."""

    by_frame_pointer: bool
    offset: int
    saved: int


class Rules:
    """The rule at each code address, found once."""

    def __init__(self, memory: Memory, modules: ModuleTable) -> None:
        self._memory = memory
        self._modules = modules
        self._tables: dict[int, FrameTable | None] = {}
        self._rules: dict[int, Rule | None] = {}

    def at(self, pc: int) -> Rule | None:
        """The rule at ``pc``; None without call frame information, or with more than a frame of a function has."""
        try:
            return self._rules[pc]
        except KeyError:
            rule = self._rules[pc] = self._find(pc)
            return rule

    def _find(self, pc: int) -> Rule | None:
        module = self._modules.find(pc)
        if module is None:
            return None
        try:
            table = self._table(module)
            fde = table.find(module.vaddr(pc)) if table is not None else None
            return compact(self._memory.architecture, row_at(fde, module.vaddr(pc))) if fde is not None else None
        except (BadData, MemoryFault):
            return None

    def _table(self, module: Module) -> FrameTable | None:
        if module.start not in self._tables:
            self._tables[module.start] = frame_table(module, self._memory)
        return self._tables[module.start]


def compact(architecture: Architecture, row: Row) -> Rule | None:
    """The row, where it is as simple as nearly all are."""
    number = architecture.dwarf_registers.index
    top, base = number(architecture.stack_pointer), number(architecture.frame_pointer)
    if row.cfa_code is not None or row.cfa_register not in (top, base) or row.is_signal:
        return None
    saved = row.rules.get(base)
    if saved is None or saved.kind == SAME:
        return Rule(row.cfa_register == base, row.cfa_offset, 0)
    if saved.kind != OFFSET:
        return None
    return Rule(row.cfa_register == base, row.cfa_offset, saved.number)


class Place(NamedTuple):
    """Where a stop is: its address, the function around it [start, end), and its frame's size (sites.Frame.size).

    ``start`` is 0 for a function that may leave by a tail call.
    """

    pc: int
    start: int
    end: int
    size: int


class CallerCheck(NamedTuple):
    """A frame that is looked for: its CFA, and the code that must be running in it: [start, end).

    Where the function may have left by a tail call the code is another's; then ``start`` is 0 and the return address
    must be ``returns_to``.
    """

    cfa: int
    start: int
    end: int
    returns_to: int


class CallerWalk:
    """Walks the stack of the thread that is stopped now."""

    def __init__(self, rules: Rules, read: ReadStack, frame_pointer: Callable[[], int]) -> None:
        """``read`` reads the stack as it is now, ``frame_pointer`` that register of the selected thread."""
        self._rules = rules
        self._read = read
        self._frame_pointer = frame_pointer

    def return_address(self, cfa: int) -> int:
        """Where the frame that ends at ``cfa`` returns to. Raises MemoryFault."""
        return int(_word(self._read(cfa - 8, 8), 0)[0])

    def inside(self, pc: int, cfa: int, ancestor: CallerCheck) -> bool:
        """The frame of code ``pc`` that ends at ``cfa`` was called from inside ``ancestor``, a frame further up.

        True also where that cannot be disproved: the walk meets code without call frame information, and the
        ancestor's return address is still in its place. Raises MemoryFault.
        """
        try:
            return self._walk(pc, cfa, ancestor)
        except struct.error:
            return False  # a saved register outside of the frames: the stack is damaged

    def _walk(self, pc: int, cfa: int, ancestor: CallerCheck) -> bool:
        top = ancestor.cfa
        if not 0 <= top - cfa < SPAN_LIMIT:
            return False
        rule = self._rules.at(pc)
        low = min(cfa - _SLACK, cfa + rule.saved) if rule is not None else cfa - _SLACK
        stack = self._read(low, top - low)
        if rule is not None and rule.saved:
            base = _word(stack, cfa + rule.saved - low)[0]
        else:
            base = self._frame_pointer()
        current = cfa
        for _ in range(FRAME_LIMIT):
            pc = _word(stack, current - 8 - low)[0]
            rule = self._rules.at(pc - 1)
            if rule is None:
                return self._in_place(stack, low, ancestor)
            above = (base if rule.by_frame_pointer else current) + rule.offset
            if above >= top or above <= current:
                return above == top and self._is(pc, stack, low, ancestor)
            if rule.saved:
                base = _word(stack, above + rule.saved - low)[0]
            current = above
        return False

    def _is(self, pc: int, stack: bytes, low: int, ancestor: CallerCheck) -> bool:
        if ancestor.start:
            return ancestor.start <= pc - 1 < ancestor.end
        return self._in_place(stack, low, ancestor)

    def _in_place(self, stack: bytes, low: int, ancestor: CallerCheck) -> bool:
        return bool(_word(stack, ancestor.cfa - 8 - low)[0] == ancestor.returns_to)
