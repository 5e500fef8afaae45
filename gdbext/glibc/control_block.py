"""A thread's control block, found without the register that points to it.

Some debuggers do not give that register. The block proves itself: it holds its own address, twice on some
architectures, and the thread's id at a fixed offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gdbext.errors import MemoryFault
from gdbext.glibc.abi import GlibcAbi
from gdbext.targets.base import MemoryMapping

_ALIGNMENT = 64
"""TCB_ALIGNMENT (glibc 2.36, sysdeps/nptl/libc-tls.h and csu/libc-tls.c), the least that any version has used."""
_STACK_SEARCH = 1 << 20
"""Bytes at the end of a thread's stack in which its control block is looked for: behind the thread-local blocks of all
libraries that were loaded at start."""
_MAIN_SEARCH = 1 << 20
"""Anonymous mappings up to this size may hold the main thread's block, which the dynamic loader allocates."""
_WORD_SIZE = 8

Read = Callable[[int, int], bytes]


def find_control_block(
    read: Read, mappings: Sequence[MemoryMapping], abi: GlibcAbi, tid: int, stack_pointer: int
) -> int | None:
    """The thread pointer of a thread, None where no block or more than one proves to be its own.

    A thread that pthread_create made has it at the end of its stack's mapping, the main thread somewhere among the
    small anonymous mappings.
    """
    for start, size in _places(mappings, stack_pointer):
        try:
            data = read(start, size)
        except MemoryFault:
            continue
        found = [address for address in _own_addresses(data, start, abi) if _id_at(read, address, abi) == tid]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _places(mappings: Sequence[MemoryMapping], stack_pointer: int) -> Iterator[tuple[int, int]]:
    stack = next((each for each in mappings if each.start <= stack_pointer < each.end), None)
    if stack is not None:
        start = max(stack_pointer & -_ALIGNMENT, stack.end - _STACK_SEARCH)
        yield start, stack.end - start
    for each in mappings:
        if not each.path and each.permissions.startswith("rw") and each.end - each.start <= _MAIN_SEARCH:
            yield each.start, each.end - each.start


def _own_addresses(data: bytes, start: int, abi: GlibcAbi) -> Iterator[int]:
    """Aligned addresses at which that very address stands wherever a control block has it."""
    words = memoryview(data[: len(data) & -_WORD_SIZE]).cast("Q")
    offsets = [offset // _WORD_SIZE for offset in abi.own_addresses]
    for index in range(0, len(words) - max(offsets), _ALIGNMENT // _WORD_SIZE):
        address = start + index * _WORD_SIZE
        if all(words[index + offset] == address for offset in offsets):
            yield address


def _id_at(read: Read, address: int, abi: GlibcAbi) -> int | None:
    try:
        return int.from_bytes(read(address + abi.thread_id, 4), "little")
    except MemoryFault:
        return None
