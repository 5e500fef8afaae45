"""glibc's record of a thread, ``struct pthread``, and the search for a thread's control block.

Sources: sysdeps/ARCH/nptl/tls.h (``tcbhead_t``, TLS_TCB_AT_TP or TLS_DTV_AT_TP), nptl/descr.h (``struct pthread``).
Some debuggers do not give the register that points to the block, and it is unknown for a thread that is not stopped.
Then the block is searched for where glibc puts it; it proves itself by its own address and the thread's id at fixed
offsets.
"""

from __future__ import annotations

from contextlib import suppress
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.targets.live.proc_checks import foreign_tracer
from gdbext.engine.targets.live.snapshot_target import brief_stop
from gdbext.engine.targets.live.stop_copy import mapping_at
from gdbext.engine.targets.live.unstopped import SleepingProcess, UnstoppedProcess
from gdbext.errors import GdbextError, MemoryFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gdbext.engine.arch import Architecture
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.targets.base_target import MemoryMapping, Target, TargetThread

    Read = Callable[[int, int], bytes]


class GlibcAbi(NamedTuple):
    """Offsets in bytes, all of them from the thread pointer."""

    own_addresses: tuple[int, ...]
    """Words of the thread control block that hold the thread pointer itself (``tcb``, ``self``)."""
    dtv: int  # the pointer to the thread's dynamic thread vector
    blocks_below: bool
    """The thread-local blocks of the program and of the libraries loaded with it end below the thread pointer."""
    pthread_self: int  # the result of pthread_self(), minus the thread pointer
    thread_id: int
    """``struct pthread.tid``: the kernel's id of the thread, which the kernel clears when it ends (until 2.42)."""
    join_state: int
    """``struct pthread.joinstate``, which it clears instead since 2.43: ``joinid`` was there (0: not joined)."""


ROWS: Mapping[str, GlibcAbi] = {
    "x86_64": GlibcAbi(
        own_addresses=(0, 16),
        dtv=8,
        blocks_below=True,
        pthread_self=0,
        thread_id=0x2D0,  # 704 bytes of tcbhead_t's padding, then a list_t; the same in glibc 2.12 to 2.43
        join_state=0x628,
    )
}


def glibc_abi(architecture: Architecture) -> GlibcAbi:
    """The offsets in glibc's structures on an architecture."""
    return ROWS[architecture.name]


JOINABLE, EXITING = 2, 1
"""Values of ``struct pthread.joinstate`` while pthread_join waits for the thread (nptl/descr.h, 2.43)."""


def thread_id_word(memory: Memory, thread_pointer: int) -> int:
    """The address of the thread's id; pthread_join sleeps on it before 2.43."""
    return thread_pointer + glibc_abi(memory.architecture).thread_id


def join_state_word(memory: Memory, thread_pointer: int) -> int:
    """The address of the thread's state; pthread_join sleeps on it since 2.43."""
    return thread_pointer + glibc_abi(memory.architecture).join_state


def thread_id(memory: Memory, thread_pointer: int) -> int | None:
    """The thread's id in the PID namespace of its process, None if it cannot be read."""
    raw = memory.try_read(thread_id_word(memory, thread_pointer), 4) if thread_pointer else b""
    return int.from_bytes(raw, "little") if raw else None


def id_of_block(memory: Memory, thread_pointer: int) -> int | None:
    """The thread's id in the control block at a thread pointer; 0 if there is no control block, None if it cannot be
    read."""
    own = _own_words(memory, thread_pointer)
    if any(address not in (None, thread_pointer) for address in own):
        return 0
    return None if None in own else thread_id(memory, thread_pointer)


def was_thread(memory: Memory, ident: int) -> bool:
    """True if a control block is at the pthread_t ``ident``: of a thread, or of one that exited or that fork() did not
    copy (glibc keeps their stacks for later threads)."""
    thread_pointer = ident - glibc_abi(memory.architecture).pthread_self
    return set(_own_words(memory, thread_pointer)) == {thread_pointer}


def _own_words(memory: Memory, thread_pointer: int) -> list[int | None]:
    """The words that have the thread pointer itself in a control block; None for one that cannot be read."""
    return [memory.try_u64(thread_pointer + offset) for offset in glibc_abi(memory.architecture).own_addresses]


class StartedThread(NamedTuple):
    """What a thread was started with by pthread_create, from its control block: addresses."""

    start_routine: int
    argument: int


def threads_left_behind(memory: Memory, mappings: Sequence[MemoryMapping]) -> Iterator[StartedThread]:
    """The threads that fork() did not copy, by the control blocks on their stacks, which it did copy; also those that
    were detached and have ended. The id in such a block is 0 (reclaim_stacks of nptl/allocatestack.c; a joined thread
    has -1). ``start_routine`` is its first word that is an address of code outside of libc, ``arg`` follows it
    (nptl/descr.h)."""
    abi = glibc_abi(memory.architecture)
    code = [mapping for mapping in mappings if "x" in mapping.permissions and "/libc." not in mapping.path]
    for mapping in mappings:
        start = max(mapping.start, mapping.end - _STACK_SEARCH[0])
        is_stack = not mapping.path and mapping.permissions.startswith("rw") and start > mapping.start
        data = memory.try_read(start, mapping.end - start) if is_stack else b""
        for block in _own_addresses(data, start, abi) if data else ():
            fields = data[block - start + abi.thread_id :][:_DESCRIPTOR_SIZE]
            if fields[:4] != bytes(4):
                continue
            words = memoryview(fields[: len(fields) & -_WORD_SIZE]).cast("Q").tolist()
            for word, argument in zip(words, words[1:]):
                if word >= _PAGE and mapping_at(code, word):
                    yield StartedThread(word, argument)
                    break


_DESCRIPTOR_SIZE = 0x640
"""Bytes of ``struct pthread`` from ``tid`` on, at most, in glibc 2.12 to 2.43."""
_PAGE = 1 << 12
_ALIGNMENT = 64
"""TCB_ALIGNMENT (glibc 2.36, sysdeps/nptl/libc-tls.h and csu/libc-tls.c), the least that any version has used."""
_STACK_SEARCH = (1 << 14, 1 << 20)
"""Bytes at the end of a thread's stack that are searched for its control block, first few, then many: the thread-local
blocks of all libraries that were loaded at start lie there, too; they are small in most programs."""
_WORD_SIZE = 8


def find_control_block(
    read: Read, mappings: Sequence[MemoryMapping], abi: GlibcAbi, tid: int, stack_pointer: int, everywhere: bool = True
) -> int:
    """The thread pointer of thread ``tid`` (of its own PID namespace), 0 unless exactly one block proves to be its own.

    The block of a thread that pthread_create made is at the end of its stack's mapping, the main thread's in one of the
    small anonymous mappings, which are searched only if ``everywhere``.
    """
    for start, size in _search_areas(mappings, stack_pointer, everywhere):
        try:
            data = read(start, size)
        except MemoryFault:
            continue
        blocks = [address for address in _own_addresses(data, start, abi) if _id_at(read, address, abi) == tid]
        if blocks:
            return blocks[0] if len(blocks) == 1 else 0
    return 0


def _search_areas(mappings: Sequence[MemoryMapping], stack_pointer: int, everywhere: bool) -> Iterator[tuple[int, int]]:
    """(start, size) of memory to search, the likeliest first."""
    stack = mapping_at(mappings, stack_pointer)
    if stack and stack.path != "[stack]":  # the main thread's, which has no control block
        end = stack.end
        for size in _STACK_SEARCH:
            start = max(stack_pointer & -_ALIGNMENT, stack.end - size)
            if start < end:
                yield start, end - start
            end = start
    if not everywhere:
        return
    are_files = [mapping.path.startswith("/") for mapping in mappings]
    candidates = []
    for before, mapping, after in zip([False, *are_files], mappings, [*are_files[1:], False]):
        size = mapping.end - mapping.start
        if not mapping.path and mapping.permissions.startswith("rw") and size <= 1 << 20:
            # the dynamic loader allocates the block; its mappings are beside those of libraries
            candidates.append((not (before or after), size, mapping.start))
    for _, size, start in sorted(candidates):
        yield start, size


def _own_addresses(data: bytes, start: int, abi: GlibcAbi) -> Iterator[int]:
    """The aligned addresses in ``data`` (at ``start``) whose words ``abi.own_addresses`` have that very address."""
    words = memoryview(data[: len(data) & -_WORD_SIZE]).cast("Q")
    first, *others = (offset // _WORD_SIZE for offset in abi.own_addresses)
    held, addresses = words[first :: _ALIGNMENT // _WORD_SIZE].tolist(), range(start, start + len(data), _ALIGNMENT)
    if not any(map(eq, addresses, held)):  # as nearly everywhere, in up to 60,000 mappings
        return
    for address, word in zip(addresses, held):
        index = (address - start) // _WORD_SIZE
        if word == address and all(words[index + other : index + other + 1].tolist() == [address] for other in others):
            yield address


def _id_at(read: Read, address: int, abi: GlibcAbi) -> int | None:
    """The thread id in the control block at ``address``, None if it cannot be read."""
    try:
        return int.from_bytes(read(address + abi.thread_id, 4), "little")
    except MemoryFault:
        return None


class ThreadFinder:
    """Finds the thread pointers of the threads of one process that is not stopped."""

    def __init__(self) -> None:
        self._distances: list[int] = []
        """Distances from thread pointers to the ends of their stacks: most threads of a process have the same."""

    def __call__(self, target: Target, tid: int, own_tid: int, stack_pointer: int) -> int:
        """The thread pointer of thread ``tid``, 0 if it is not found; ``own_tid`` is its id in its PID namespace."""
        maps, abi, read = target.memory.maps(), glibc_abi(target.architecture), target.memory.read
        stack = mapping_at(maps, stack_pointer)
        try:
            for address in [stack.end - distance for distance in self._distances] if stack else []:
                own = address.to_bytes(_WORD_SIZE, "little")
                is_block = all(read(address + offset, _WORD_SIZE) == own for offset in abi.own_addresses)
                if is_block and _id_at(read, address, abi) == own_tid:
                    return address
            address = find_control_block(read, maps, abi, own_tid, stack_pointer, tid == target.pid)
        except GdbextError:
            return 0
        if stack and address in range(stack.start, stack.end):
            self._distances.append(stack.end - address)
        return address


def unstopped(pid: int) -> UnstoppedProcess:
    """Process ``pid``, read while it runs: no thread is ever stopped. Raises as SnapshotTarget."""
    return UnstoppedProcess(pid, ThreadFinder())


def asleep(pid: int) -> SleepingProcess | None:
    """Process ``pid`` while all its threads sleep; None if one runs, or cannot be read without a stop. Raises as
    SnapshotTarget."""
    process = SleepingProcess(pid, ThreadFinder())
    try:
        if process.can_be_read():
            return process
    except BaseException:
        process.close()
        raise
    process.close()
    return None


def briefly_stopped(pid: int) -> Target:
    """Process ``pid``, stopped briefly unless all threads sleep and can be read so, or another process traces it (then
    it cannot be stopped). Raises as SnapshotTarget."""
    if foreign_tracer(pid):
        return unstopped(pid)
    return brief_stop(pid, lambda: unstopped(pid))


class PthreadTids(NamedTuple):
    """``tids``: pthread_t → tid; ``complete`` if the pthread_t of every thread is known."""

    tids: dict[int, int]
    complete: bool

    @classmethod
    def read(cls, memory: Memory, threads: Sequence[TargetThread]) -> PthreadTids:
        """Read the pthread_t of each thread whose registers can be read; without one that two threads share."""
        architecture = memory.architecture
        idents: dict[int, list[int]] = {}
        for thread in threads:
            with suppress(GdbextError):
                base = architecture.thread_pointer(thread.registers())
                if base:
                    idents.setdefault(base + glibc_abi(architecture).pthread_self, []).append(thread.tid)
        table = {ident: tids[0] for ident, tids in idents.items() if len(tids) == 1}
        return cls(table, len(table) == len(threads))
