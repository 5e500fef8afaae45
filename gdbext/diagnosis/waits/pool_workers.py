"""Workers of pools: which are idle, and OpenMP's teams, barriers and missing workers.

An idle worker is known by the functions of its pool's row in diagnosis/waits/pool_table.py: by the native functions
that it waits in, by its innermost Python frames, or by the names of threads and libraries. Workers of libraries are
missing after a fork.

The libgomp of the wheels has no local symbols, and waits by its own inline system call: the module of the innermost
frame says "libgomp", and its exported callers say what for (libgomp/config/linux/futex.h, team.c, parallel.c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi import assumed_names
from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, Wait
from gdbext.diagnosis.report.wait_detail import AbsentWorkers
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.pool_table import NOTHING, OPENMP, MissingWorkers, Pool, PoolFunction, PoolPart
from gdbext.diagnosis.waits.snapshot import INNER, ThreadSnapshot, fork_evidence
from gdbext.engine.formats.elf_header import PF_W
from gdbext.engine.vocabulary import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gdbext.diagnosis.report.thread_report import Frame
    from gdbext.diagnosis.waits.snapshot import Tag
    from gdbext.engine.process.modules import Module

_DEPTH = 8
"""Innermost Python frames of an idle worker, up to its main function: six in a worker that polls its queue."""


def python_pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The pool whose idle worker this is, None for a thread that works or is not a worker."""
    if not thread.syscall or thread.dispatch:
        return None
    inner = [(_file(frame), frame.function.rpartition(".")[2]) for frame in thread.python[:_DEPTH]]
    for level, call in enumerate(inner):
        pool = thread.process.pools.python.get(call)
        if pool:
            works = not level and call in pool.works_in
            return pool if not works and _only_waits(inner[:level], pool) else None
    return None


def _only_waits(inner: list[tuple[str, str]], pool: Pool) -> bool:
    """The frames above a pool's main loop are those of a worker without work."""
    if pool.idles_in and inner[:1] != [pool.idles_in]:
        return False
    if tuple(inner[:2]) in _TAKES_TURNS:
        inner = inner[1:]
    return all(
        call in pool.waits_in or (call[0] in assumed_names.WAITING_FILES and call not in assumed_names.WORKING_CALLS)
        for call in inner
    )


_TAKES_TURNS = ((("synchronize.py", "__enter__"), ("queues.py", "get")),)
"""Innermost calls of a worker that waits for its turn to wait for work: one of them reads, the others queue for the
reader's lock."""


def _file(frame: Frame) -> str:
    return frame.file.rpartition("/")[2]


_AT_WORK = (
    FunctionTag.AUTOGRAD_MAIN,
    FunctionTag.AUTOGRAD_EVALUATE,
    FunctionTag.EVAL_FUNCTIONS,
    FunctionTag.COLLECTIVE,
    FunctionTag.STORE,
    FunctionTag.DEVICE,
    FunctionTag.DEVICE_QUEUE,
)
"""Functions inside the pool's that only a worker with a job is in."""


def native_pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The pool whose idle worker this is, None for a thread that works or is not a worker."""
    for tag, level in thread.inner_tags.items():
        if not isinstance(tag, PoolFunction) or tag.part is not PoolPart.WAITS or level >= tag.pool.within:
            continue
        if not _is_worker(thread, tag.pool, level):
            continue
        if not any(thread.inner_tags.get(busy, INNER) < level for busy in _AT_WORK):
            return tag.pool
    return _pool_without_names(thread)


_SPINNING = 2
"""Frames from the program counter up to a loop that looks for work: it yields the processor in between."""


def spinning_pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The pool whose worker this is, which runs and only looks for work; None for any other thread."""
    for tag, level in thread.inner_tags.items():
        if isinstance(tag, PoolFunction) and tag.part is PoolPart.SPINS and level < _SPINNING:
            return tag.pool
    return None


_SHALLOW = 12
"""Most frames of an idle worker from the kernel to the start of its thread."""
_PARKED_IN = frozenset({"futex", "epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll"})
"""The system calls in which workers wait for work."""
_RUNTIME = ("libc.", "libc-2", "libpthread", "ld-linux", "libstdc++", "libgcc_s", "libc++")
"""Beginnings of the libraries that are below all others."""


def _pool_without_names(thread: ThreadSnapshot) -> Pool | None:
    """The pool whose idle worker this is by what the library calls its threads, or by the library alone, where its
    functions have no names."""
    if thread.python or thread.tid == thread.process.pid or not 0 < len(thread.frames) <= _SHALLOW:
        return None
    if not thread.syscall or thread.syscall.name not in _PARKED_IN:
        return None
    name = thread.name or ""
    for pool in thread.process.pools.without_names:
        known = pool.alone or (pool.named and name.startswith(pool.named))
        if known and _is_only_in(thread, pool):
            return pool
    return None


def _is_only_in(thread: ThreadSnapshot, pool: Pool) -> bool:
    """The stack has nothing but the pool's library, or any other one where that is not known, and what is below all
    libraries."""
    others = {thread.module_name(level) for level in range(len(thread.frames))}
    others -= {module for module in others if module.startswith(_RUNTIME)}
    return len(others) == 1 and others.pop().startswith(pool.library)


_ENDED_BY_WORKERS = (WaitKind.FUTEX, WaitKind.CONDVAR, WaitKind.SEMAPHORE)


def for_lost_workers(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait, with the workers that are missing after a fork: the code that waits is of a library with threads of its
    own, and the process has no thread that is in it."""
    plain = wait.owners or wait.detail.missing_workers is not None or wait.being_released or wait.external or wait.timed
    if wait.kind not in _ENDED_BY_WORKERS or plain:
        return wait
    library = _caller(thread)
    forked = fork_evidence(thread.process) if library else ()
    if not forked:
        return wait
    known = next((each for each in thread.process.pools.without_names if _is_of(each, library)), None)
    pool = known or _built_in(thread)
    if not pool:
        return wait
    others = [each for each in thread.process.threads if each is not thread and not _is_of_another(each, pool)]
    if any(_is_of(pool, module) or module == library for other in others for module in _modules(other)):
        return wait
    none_seen = f"{library} waits, and no other thread of the process is in it"
    missing = MissingWorkers(pool, forked=True)
    return wait.with_detail(AbsentWorkers(missing, wait.detail.unowned), none_seen, *forked)


def _is_of_another(thread: ThreadSnapshot, pool: Pool) -> bool:
    """The thread is an idle worker of another pool, perhaps of the same library, which was made after the fork."""
    found = _pool_without_names(thread)
    return found is not None and found.name != pool.name


def _built_in(thread: ThreadSnapshot) -> Pool | None:
    """The pool that the library in which a thread waits has built in, by a text among its constants."""
    level = next((at for at in range(len(thread.frames)) if _is_callers(thread.module_name(at))), None)
    module = thread.frames[level].module if level is not None else None
    found = [pool for pool in thread.process.pools.built_in if module and _has_text(module, pool.text)]
    if not module or not found:
        return None
    names = " or ".join(pool.name for pool in found)
    return found[0]._replace(workers=f"{names} worker threads, which {module.name} has built in")


def _has_text(module: Module, text: bytes) -> bool:
    image = module.image
    parts = [each for each in image.loads if not each.flags & PF_W] if image else []
    return image is not None and any(image.find(text, at.vaddr, at.vaddr + at.filesz) is not None for at in parts)


def _is_of(pool: Pool, library: str) -> bool:
    return bool(pool.library) and bool(pool.workers) and library.startswith(pool.library)


def _caller(thread: ThreadSnapshot) -> str:
    """The file name of the innermost module that is not below all others, "" where there is none."""
    return next(filter(_is_callers, _modules(thread)), "")


def _is_callers(module: str) -> bool:
    return bool(module) and not module.startswith(_RUNTIME)


def _modules(thread: ThreadSnapshot) -> Iterator[str]:
    return (thread.module_name(level) for level in range(len(thread.frames)))


def _is_worker(thread: ThreadSnapshot, pool: Pool, level: int) -> bool:
    """The function that waits alone does not always tell: its row says what else must be true."""
    if pool.main != NOTHING and not (runs(thread.inner_tags, pool) or runs(thread.outer_tags, pool)):
        return False
    if pool.near_main and not any(0 <= at - level <= pool.near_main for at in _mains(thread, pool)):
        return False
    return thread.module_name(level).startswith(pool.library)


def _mains(thread: ThreadSnapshot, pool: Pool) -> Iterator[int]:
    """Levels of the main function of that pool's workers."""
    return (level for tag, level in thread.inner_tags.items() if runs((tag,), pool))


def runs(tags: Iterable[Tag], pool: Pool) -> bool:
    """The main function of that pool's workers is among these."""
    return any(isinstance(tag, PoolFunction) and tag.part is PoolPart.MAIN and tag.pool == pool for tag in tags)


_GNU = ("libgomp",)
_LLVM = ("libiomp5", "libomp")
_LIBRARIES = _GNU + _LLVM
_NEAR = 12
_LOCKED = 0xFFFFFFFF
"""gomp_mutex_t that is locked and waited for (libgomp/config/linux/mutex.c, do_wait with -1); the functions that
wait for it are often reached by a jump, which leaves no frame of omp_set_lock or GOMP_critical_start."""
_MAX_TEAM = 8192


def openmp_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside an OpenMP runtime, None for any other."""
    level = _innermost_runtime_frame(thread)
    if level is None:
        return None
    futex = thread.futex
    address = futex.address if futex else 0
    locks = futex is not None and futex.value == _LOCKED and thread.module_name(0).startswith(_GNU)
    if locks or thread.first(FunctionTag.OPENMP_LOCK, within=_NEAR) is not None:
        return Wait(Resource(WaitKind.MUTEX, address, "OpenMP lock or critical section")) if futex else None
    if is_worker(thread):
        if _only_runtime_frames(thread, level):
            return Wait(Resource(WaitKind.WORKER_POOL, address, OPENMP.name))
        return _barrier(thread, address) if futex else None
    return _team(thread, address) if futex else None


def openmp_pool_of(thread: ThreadSnapshot) -> Pool | None:
    """OPENMP for an idle worker of the runtime, None for any other thread."""
    return OPENMP if is_idle_worker(thread) else None


def is_idle_worker(thread: ThreadSnapshot) -> bool:
    """A pool thread with nothing but the runtime on its stack: it waits, or spins, for work."""
    level = _innermost_runtime_frame(thread)
    return level is not None and is_worker(thread) and _only_runtime_frames(thread, level)


def is_worker(thread: ThreadSnapshot) -> bool:
    """The thread was started by the runtime: the outermost frames are libc's, then the runtime's."""
    for level in range(len(thread.frames) - 1, max(len(thread.frames) - 6, -1), -1):
        module = thread.module_name(level)
        if module.startswith(_LIBRARIES):
            return True
        if module and not module.startswith(("libc.", "libc-", "libpthread", "ld-")):
            return False
    return False


def _innermost_runtime_frame(thread: ThreadSnapshot) -> int | None:
    """The runtime waits by itself (libgomp) or through libc (libiomp5)."""
    for level in range(min(5, len(thread.frames))):
        module = thread.module_name(level)
        if module.startswith(_LIBRARIES):
            return level
        if not module.startswith(("libc.", "libc-", "libpthread")):
            return None
    return None


def _only_runtime_frames(thread: ThreadSnapshot, level: int) -> bool:
    allowed = (*_LIBRARIES, "libc.", "libc-", "libpthread", "ld-")
    return all(thread.module_name(at).startswith(allowed) for at in range(level, len(thread.frames)))


def _team(thread: ThreadSnapshot, address: int) -> Wait:
    """A master waits for its team: to start, at a barrier, or to end the region. (The entry to a region often has
    no frame: GOMP_parallel jumps to the function that waits.)"""
    workers = [other for other in thread.process.threads if other is not thread and is_worker(other)]
    resource = Resource(WaitKind.WORKER_POOL, address, OPENMP.name)
    expected = _barrier_total(thread, address)
    if workers and (expected is None or len(workers) >= expected - 1):
        return _for_team_mates(thread, resource, workers)
    if expected is None and thread.module_name(0).startswith(_GNU):
        return Wait(resource, evidence=("it waits inside the OpenMP runtime, for what is not known",))
    evidence = [
        "it waits inside the OpenMP runtime for the other threads of its team",
        f"{_some_of(len(workers), len(thread.process.tids))} was started by the OpenMP runtime",
    ]
    if expected is not None:
        evidence.append(f"the barrier at {address - 4:#x} is one of {counted(expected, 'thread')}")
    forked = fork_evidence(thread.process)
    missing = MissingWorkers(OPENMP, len(workers), forked=bool(forked) or expected is not None)
    return Wait(resource, evidence=(*evidence, *forked), detail=AbsentWorkers(missing))


def _barrier_total(thread: ThreadSnapshot, generation: int) -> int | None:
    """The threads of a gomp_barrier_t (libgomp/config/linux/bar.h): total +0, generation +4 (the futex), and in the
    next cache line awaited +64. None where the numbers cannot be that."""
    raw = thread.process.memory.try_read(generation - 4, 68) if thread.module_name(0).startswith(_GNU) else b""
    if not raw:
        return None
    total, awaited = int.from_bytes(raw[:4], "little"), int.from_bytes(raw[64:68], "little")
    return total if 2 <= total <= _MAX_TEAM and 1 <= awaited <= total else None


def _barrier(thread: ThreadSnapshot, address: int) -> Wait:
    """A barrier inside a region: the others must arrive, and the master with them."""
    mates = [other for other in thread.process.threads if other is not thread and is_in_a_team(other)]
    return _for_team_mates(thread, Resource(WaitKind.BARRIER, address, OPENMP.name), mates)


def is_in_a_team(thread: ThreadSnapshot) -> bool:
    """A worker of the runtime, or a thread with a frame of the runtime: it has started a parallel region."""
    inner = range(min(len(thread.frames), INNER))
    return is_worker(thread) or any(thread.module_name(level).startswith(_LIBRARIES) for level in inner)


def _for_team_mates(thread: ThreadSnapshot, resource: Resource, mates: list[ThreadSnapshot]) -> Wait:
    """Those that are neither at that barrier nor without work have not arrived. With several teams, who belongs to
    this one is known only if the barrier waits for just as many."""
    late = [mate for mate in mates if not is_idle_worker(mate) and not _is_at(mate, resource.address)]
    if not late:
        return Wait(resource, being_released=True, evidence=("all workers are in the runtime, none is late",))
    missing = _still_to_arrive(thread, resource.address)
    if missing and len(late) not in missing:
        return Wait(
            resource,
            evidence=(f"of its team {min(missing)} are still to arrive; {counted(len(late), 'thread')} may be",),
        )
    evidence = "workers that are in code outside of the OpenMP runtime have not arrived yet"
    owners = tuple(OwnerThread(mate.tid) for mate in late)
    return Wait(resource, owners[0], OwnerCertainty.INFERRED, evidence=(evidence,), others=owners[1:])


def _is_at(mate: ThreadSnapshot, generation: int) -> bool:
    futex = mate.futex
    return futex is not None and futex.address == generation and generation != 0


def _still_to_arrive(thread: ThreadSnapshot, generation: int) -> frozenset[int]:
    """awaited and awaited_final (+68) of the gomp_barrier_t; empty where the numbers cannot be that."""
    if _barrier_total(thread, generation) is None:
        return frozenset()
    raw = thread.process.memory.try_read(generation + 60, 8)
    return frozenset(int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4)) - {0}


def _some_of(number: int, threads: int) -> str:
    """The beginning of a sentence about that number of the process's threads."""
    if threads == 1:
        return f"{'the only thread' if number else 'no thread'} of this process"
    return f"{number or 'none'} of the {threads:,} threads of this process"
