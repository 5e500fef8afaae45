"""Was a dispatch made from inside of another one? Proven on a copy of the stack between the two, by unwinding it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import GdbextError, MemoryFault
from gdbext.probes.bpf.place_program import PLACE_BITS
from gdbext.probes.bpf.trace_program import BELOW, SNAPSHOT
from gdbext.unwind.caller_check import CallerCheck, CallerWalk

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

Relation = tuple[int, int]
"""Distance between the two return addresses on the stack, with the number of the inner place below it; the return
address of the outer one."""


def relation(outer_slot: int, outer_returns: int, slot: int, place: int) -> Relation:
    """As the kernel's program computes it."""
    return outer_slot - slot << PLACE_BITS | place, outer_returns


class CallProof:
    """Unwinds copies. ``address_of`` gives the absolute address of a place by its number."""

    def __init__(self, session: Session, addresses: dict[int, int]) -> None:
        self._session = session
        self._addresses = addresses

    def holds(self, snapshot: bytes) -> tuple[Relation, bool]:
        """What a snapshot is about, and whether the inner dispatch was called from inside of the outer.

        True also where that cannot be disproved.
        """
        first, outer_returns, slot, frame_pointer = SNAPSHOT.unpack_from(snapshot)
        about = (first, outer_returns)
        outer_slot = slot + (first >> PLACE_BITS)
        place = self._addresses.get(first & (1 << PLACE_BITS) - 1)
        if place is None:
            return about, True
        stack = _Copy(snapshot, slot - BELOW)
        architecture = self._session.memory.architecture
        walk = CallerWalk(architecture, self._session.unwinder, stack.read, lambda: frame_pointer)
        # By the return address alone: the outer function may have jumped to its kernel, which has its frame now.
        outer = CallerCheck(outer_slot + 8, 0, 0, outer_returns)
        try:
            return about, walk.inside(place, slot + 8, outer)
        except GdbextError:
            return about, True


class _Copy:
    """A piece of a stack."""

    def __init__(self, snapshot: bytes, low: int) -> None:
        self._snapshot = snapshot
        self._low = low - SNAPSHOT.size

    def read(self, address: int, size: int) -> bytes:
        """Raises MemoryFault."""
        start = address - self._low
        found = self._snapshot[start : start + size] if start >= SNAPSHOT.size else b""
        if len(found) != size:
            raise MemoryFault(address, size)
        return found
