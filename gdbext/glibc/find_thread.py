"""Finds a thread's control block without its registers: by what it holds, where glibc puts it."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gdbext.errors import GdbextError
from gdbext.glibc.abi import glibc_abi
from gdbext.targets.base import MemoryMapping, Target

_SEARCHED = 1 << 16
"""Bytes at the end of a stack: the control block lies above the thread-local variables there (nptl/allocatestack.c)."""
_MAX_BLOCK = 1 << 18
"""A main thread's block is in a mapping of its own, made by the dynamic loader (elf/rtld.c)."""


class ThreadFinder:
    """Callable: (target, thread id, its id in its own PID namespace, stack pointer) → thread pointer, 0 where it is not
    found.

    A candidate holds its own address where the control block does, and the thread's own id where ``struct pthread``
    does.
    """

    def __init__(self) -> None:
        self._distances: list[int] = []
        """From a thread pointer to the end of its stack, as found so far: most threads have the same."""

    def __call__(self, target: Target, tid: int, own_tid: int, stack_pointer: int) -> int:
        try:
            if tid == target.pid:
                return next(_of_main(target, own_tid), 0)
            return next(self._on_stack(target, own_tid, stack_pointer), 0)
        except GdbextError:
            return 0

    def _on_stack(self, target: Target, tid: int, stack_pointer: int) -> Iterator[int]:
        stack = next((each for each in target.maps() if each.start <= stack_pointer < each.end), None)
        if stack is None:
            return
        for distance in self._distances:
            if _is_block(target, tid, stack.end - distance):
                yield stack.end - distance
        for address in _candidates(target, tid, max(stack.start, stack.end - _SEARCHED), stack.end):
            self._distances.append(stack.end - address)
            yield address


def _of_main(target: Target, tid: int) -> Iterator[int]:
    for mapping in target.maps():
        if _may_hold_main(mapping):
            yield from _candidates(target, tid, mapping.start, mapping.end)


def _may_hold_main(mapping: MemoryMapping) -> bool:
    return not mapping.path and mapping.permissions.startswith("rw") and mapping.end - mapping.start <= _MAX_BLOCK


def _candidates(target: Target, tid: int, start: int, end: int) -> Iterator[int]:
    """Addresses in that memory where a control block can be."""
    data = target.read(start, end - start)
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    for index, word in enumerate(words):
        if word == start + 8 * index and _is_block(target, tid, word):
            yield word


def _is_block(target: Target, tid: int, address: int) -> bool:
    abi = glibc_abi(target.architecture)
    for offset in abi.own_addresses:
        if target.read(address + offset, 8) != address.to_bytes(8, "little"):
            return False
    return target.read(address + abi.thread_id, 4) == tid.to_bytes(4, "little")
