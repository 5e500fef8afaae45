"""Calls that have not come back yet, and hooks where they return to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from gdbext.live.hooks.lookup_sites import CfaRule
from gdbext.live.run_control import HookSpec

if TYPE_CHECKING:
    from gdbext.live.run_control import RunControl

Call = TypeVar("Call")


class ReturnWatch(Generic[Call]):
    """Tells a call from another one by the end of its frame, so that recursion and exceptions do no harm."""

    def __init__(self, control: RunControl, stack_pointer: str, returned: Callable[[int, Call], bool]) -> None:
        """``returned`` gets the thread and the call; True: the process is to stay stopped."""
        self._control = control
        self._stack_pointer = stack_pointer
        self._callback = returned
        self._open: dict[int, list[tuple[int, Call]]] = {}
        self._hooked: set[int] = set()

    def expect(self, tid: int, cfa: int, call: Call) -> bool:
        """Wait for the return of the frame that ends at ``cfa``; True where a hook was placed. Raises MemoryFault."""
        calls = self._open.setdefault(tid, [])
        while calls and calls[-1][0] <= cfa:  # ended by an exception
            calls.pop()
        calls.append((cfa, call))
        returns_to = int.from_bytes(self._control.read(cfa - 8, 8), "little")
        if returns_to in self._hooked:
            return False
        self._hooked.add(returns_to)
        self._control.place(HookSpec(returns_to, CfaRule(self._stack_pointer, 0, 0), self._returned))
        return True

    def is_inside(self, tid: int) -> bool:
        """A call of the thread has not come back."""
        return bool(self._open.get(tid))

    def _returned(self, tid: int, top: int, _value: int) -> bool:
        calls = self._open.get(tid, [])
        while calls and calls[-1][0] < top:
            calls.pop()
        if not calls or calls[-1][0] != top:
            return False
        return self._callback(tid, calls.pop()[1])
