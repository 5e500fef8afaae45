"""Looks at a live process without a debugger: as it sleeps, or stopped for as long as copying takes.

A thread that nobody stops has no register that points to its control block; it is found where glibc puts it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.engine.glibc.pthread import glibc_abi
from gdbext.engine.targets.base_target import MemoryMapping, Target
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget, brief_stop
from gdbext.engine.targets.live.stop_copy import mapping_at
from gdbext.engine.targets.live.unstopped import UnstoppedProcess
from gdbext.errors import GdbextError

_SEARCHED = 1 << 16
"""Bytes at the end of a stack: the control block lies above the thread-local variables there (nptl/allocatestack.c)."""
_MAX_BLOCK = 1 << 18
"""A main thread's block is in a mapping of its own, made by the dynamic loader (elf/rtld.c)."""
_WORD, _LOW_BYTES = 8, 2
_BLOCK = 1 << 8 * _LOW_BYTES
"""Addresses of such a block differ in their low bytes alone."""


class ThreadFinder:
    """Callable: (target, thread id, its id in its own PID namespace, stack pointer) → thread pointer, 0 where it is not
    found.

    A candidate holds its own address where the control block does, and the thread's own id where ``struct pthread``
    does.
    """

    def __init__(self) -> None:
        self._distances: list[int] = []
        """Distances from a thread pointer to the end of its stack, as found so far: most threads have the same."""

    def __call__(self, target: Target, tid: int, own_tid: int, stack_pointer: int) -> int:
        try:
            if tid == target.pid:
                main = next(_of_main(target, own_tid), 0)
                if main:
                    return main  # else it was forked by a thread, on whose stack it goes on
            return next(self._on_stack(target, own_tid, stack_pointer), 0)
        except GdbextError:
            return 0

    def _on_stack(self, target: Target, tid: int, stack_pointer: int) -> Iterator[int]:
        stack = mapping_at(target.maps(), stack_pointer)
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
    for block in range(start & -_BLOCK, end, _BLOCK):
        for address in _own_addresses(data, start, max(start, block), min(end, block + _BLOCK)):
            if _is_block(target, tid, address):
                yield address


def _own_addresses(data: bytes, start: int, first: int, last: int) -> Iterator[int]:
    """Words between two addresses of one block that hold their own address; ``data`` begins at ``start``. What all
    addresses of a block have in common is looked for, at the speed of memory."""
    common = (first // _BLOCK).to_bytes(_WORD - _LOW_BYTES, "little")
    at = data.find(common, first - start, last - start)
    while at >= 0:
        address = start + at - _LOW_BYTES
        if not address % _WORD and data[at - _LOW_BYTES : at] == (address % _BLOCK).to_bytes(_LOW_BYTES, "little"):
            yield address
        at = data.find(common, at + 1, last - start)


def _is_block(target: Target, tid: int, address: int) -> bool:
    abi = glibc_abi(target.architecture)
    for offset in abi.own_addresses:
        if target.read(address + offset, 8) != address.to_bytes(8, "little"):
            return False
    return target.read(address + abi.thread_id, 4) == tid.to_bytes(4, "little")


def unstopped(pid: int) -> UnstoppedProcess:
    """Process ``pid`` as it sleeps and runs: nobody is ever stopped. Raises as SnapshotTarget."""
    return UnstoppedProcess(pid, ThreadFinder())


def brief_look(pid: int) -> SnapshotTarget:
    """Process ``pid``: not stopped where all threads sleep, and nothing else needs a stop. Raises as SnapshotTarget."""
    return brief_stop(pid, lambda: unstopped(pid))
