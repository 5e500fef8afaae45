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
_STACK_SEARCH = (1 << 14, 1 << 20)
"""Bytes at the end of a thread's stack in which its control block is looked for: behind the thread-local blocks of all
libraries that were loaded at start, which are small in most programs."""
_MAIN_STACK = "[stack]"
"""The kernel's name of the one stack that no control block is on (proc_pid_maps(5))."""
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
    """Where to look, the likeliest first: to read is what it costs."""
    stack = next((each for each in mappings if each.start <= stack_pointer < each.end), None)
    if stack is not None and stack.path != _MAIN_STACK:
        end = stack.end
        for size in _STACK_SEARCH:
            start = max(stack_pointer & -_ALIGNMENT, stack.end - size)
            if start < end:
                yield start, end - start
            end = start
    sizes = ((each.end - each.start, each) for each in mappings if not each.path and each.permissions.startswith("rw"))
    for size, each in sorted(sizes, key=lambda found: found[0]):
        if size <= _MAIN_SEARCH:
            yield each.start, size


def _own_addresses(data: bytes, start: int, abi: GlibcAbi) -> Iterator[int]:
    """Aligned addresses at which that very address stands wherever a control block has it."""
    words = memoryview(data[: len(data) & -_WORD_SIZE]).cast("Q")
    first, *others = (offset // _WORD_SIZE for offset in abi.own_addresses)
    held = words[first :: _ALIGNMENT // _WORD_SIZE].tolist()
    for address, word in zip(range(start, start + len(data), _ALIGNMENT), held):
        index = (address - start) // _WORD_SIZE
        if word == address and all(words[index + other : index + other + 1].tolist() == [address] for other in others):
            yield address


def _id_at(read: Read, address: int, abi: GlibcAbi) -> int | None:
    try:
        return int.from_bytes(read(address + abi.thread_id, 4), "little")
    except MemoryFault:
        return None
