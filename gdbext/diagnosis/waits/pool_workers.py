"""Idle workers of pools, by the rows of pool_table.py; and OpenMP's teams, barriers and missing workers.

The wheels' libgomp has no local symbols and its own inline futex call: the module of the innermost frame says
"libgomp", and its exported callers say what for (libgomp/config/linux/futex.h, team.c, parallel.c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi import assumed_names
from gdbext.diagnosis.report.wait import OwnerCertainty, Wait
from gdbext.diagnosis.report.wait_detail import AbsentWorkers
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.diagnosis.waits import forked_pools
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.pool_table import NOTHING, OPENMP, MissingWorkers, Pool, PoolFunction, PoolPart
from gdbext.diagnosis.waits.snapshot import INNER, RUNTIME_LIBRARIES, ThreadSnapshot, wait_for_threads
from gdbext.engine.formats.elf_header import PF_W
from gdbext.engine.vocabulary import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gdbext.diagnosis.waits.snapshot import Tag


def python_pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The pool of workers in Python whose idle worker this is, None for a thread that works or is not a worker."""
    if not thread.syscall or thread.dispatch:
        return None
    # (file name, function) of the 8 innermost frames; 6 of these belong to an idle worker that polls its queue.
    calls = [(frame.file.rpartition("/")[2], frame.function.rpartition(".")[2]) for frame in thread.python[:8]]
    level, pool = next(
        ((level, pool) for level, call in enumerate(calls) if (pool := thread.process.pools.python.get(call))),
        (0, None),
    )
    if not pool or (level == 0 and calls[0] in pool.works_in):
        return None
    inner = calls[:level]  # the frames above the pool's main loop must be those of a worker without work
    if pool.idles_in and inner[:1] != [pool.idles_in]:
        return None
    if inner[:2] == [("synchronize.py", "__enter__"), ("queues.py", "get")]:
        inner = inner[1:]  # it waits for the lock of the pool's readers: one reads, the others queue for their turn
    for call in inner:
        waits = call[0] in assumed_names.WAITING_FILES and call not in assumed_names.WORKING_CALLS
        if not waits and call not in pool.waits_in:
            return None
    return pool


_AT_WORK = (
    FunctionTag.AUTOGRAD_MAIN,
    FunctionTag.AUTOGRAD_EVALUATE,
    FunctionTag.EVAL_FUNCTIONS,
    FunctionTag.COLLECTIVE,
    FunctionTag.STORE,
    FunctionTag.DEVICE,
    FunctionTag.DEVICE_QUEUE,
)
"""Functions that only a worker with a job is in, called by the pool's own."""


def native_pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The native pool whose idle worker this is, None for a thread that works or is not a worker."""
    for tag, level in thread.inner_tags.items():
        if not isinstance(tag, PoolFunction) or tag.part is not PoolPart.WAITS or level >= tag.pool.within:
            continue
        # The function in which it waits does not always suffice: the pool's row says what else must be true.
        pool = tag.pool
        if pool.main != NOTHING and not (
            has_pool_main(thread.inner_tags, pool) or has_pool_main(thread.outer_tags, pool)
        ):
            continue
        if not thread.module_name(level).startswith(pool.library):
            continue
        mains = (main for tag, main in thread.inner_tags.items() if has_pool_main((tag,), pool))
        if pool.near_main and not any(0 <= main - level <= pool.near_main for main in mains):
            continue
        if not any(thread.inner_tags.get(busy, INNER) < level for busy in _AT_WORK):
            return pool
    return _pool_without_names(thread)


def spinning_pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The pool of a worker that runs but only polls for work; None for any other thread."""
    for tag, level in thread.inner_tags.items():
        # A loop that looks for work yields the CPU in between, so it is one of the two innermost frames.
        if isinstance(tag, PoolFunction) and tag.part is PoolPart.SPINS and level < 2:
            return tag.pool
    return None


def _pool_without_names(thread: ThreadSnapshot) -> Pool | None:
    """The pool whose idle worker this is, in a library whose functions have no names: by the thread's name, or by the
    library alone. An idle worker has at most 12 frames, all in the library and in the runtime libraries below it."""
    if thread.python or thread.tid == thread.process.pid or not 0 < len(thread.frames) <= 12:
        return None
    parked_in = ("futex", "epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll")
    if not thread.syscall or thread.syscall.name not in parked_in:
        return None
    modules = {module for module in _module_names(thread) if not module.startswith(RUNTIME_LIBRARIES)}
    if len(modules) != 1:
        return None
    for pool in thread.process.pools.without_names:
        is_worker_name = pool.alone or (pool.named and (thread.name or "").startswith(pool.named))
        if is_worker_name and all(module.startswith(pool.library) for module in modules):
            return pool
    return None


def with_lost_workers(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait with the workers that a fork left behind: no other thread is in the library whose code waits."""
    is_explained = wait.owners or wait.detail.missing_workers is not None
    if wait.kind not in (WaitKind.FUTEX, WaitKind.CONDVAR, WaitKind.SEMAPHORE) or is_explained:
        return wait
    if wait.being_released or wait.external or wait.timed:
        return wait
    process = thread.process
    modules = enumerate(_module_names(thread))
    level, library = next(
        ((at, name) for at, name in modules if name and not name.startswith(RUNTIME_LIBRARIES)), (0, "")
    )
    if not library or not process.fork_evidence:
        return wait
    pool = next((pool for pool in process.pools.without_names if _is_library_of(pool, library)), None)
    pool = pool or _built_in_pool(thread, level)
    if not pool:
        return forked_pools.with_threads_left_behind(thread, wait, level)
    for other in process.threads:
        if other is thread:
            continue
        idle_in = _pool_without_names(other)
        if idle_in and idle_in.name != pool.name:
            continue  # a worker of another pool, perhaps of the same library, that was started after the fork
        if any(_is_library_of(pool, module) or module == library for module in _module_names(other)):
            return wait
    none_seen = f"{library} waits, and no other thread of the process is in it"
    detail = AbsentWorkers(MissingWorkers(pool, forked=True), wait.detail.unowned)
    return wait.with_detail(detail, none_seen, *process.fork_evidence)


def _built_in_pool(thread: ThreadSnapshot, level: int) -> Pool | None:
    """The pool built into the library of frame ``level``, by a text among its constants; None if there is none."""
    module = thread.frames[level].module
    image = module.image if module else None
    if not module or not image:
        return None
    constants = [part for part in image.loads if not part.flags & PF_W]
    pools = [
        pool
        for pool in thread.process.pools.built_in
        if any(image.find(pool.text, part.vaddr, part.vaddr + part.filesz) is not None for part in constants)
    ]
    names = " or ".join(pool.name for pool in pools)
    return pools[0]._replace(workers=f"{names} worker threads (built into {module.name})") if pools else None


def _is_library_of(pool: Pool, module: str) -> bool:
    """True if the module is the pool's library, and the pool's workers may be missing."""
    return bool(pool.library) and bool(pool.workers) and module.startswith(pool.library)


def _module_names(thread: ThreadSnapshot) -> Iterator[str]:
    return (thread.module_name(level) for level in range(len(thread.frames)))


def has_pool_main(tags: Iterable[Tag], pool: Pool) -> bool:
    """True if the main function of the pool's workers is among these tags."""
    return any(isinstance(tag, PoolFunction) and tag.part is PoolPart.MAIN and tag.pool == pool for tag in tags)


_GNU_OPENMP = ("libgomp",)
_OPENMP_LIBRARIES = (*_GNU_OPENMP, "libiomp5", "libomp")
_LIBC = ("libc.", "libc-", "libpthread")


def openmp_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside an OpenMP runtime, None for any other."""
    if _innermost_openmp_frame(thread) is None:
        return None
    futex = thread.futex
    address = futex.address if futex else 0
    # -1 is the value of a gomp_mutex_t that is locked and waited for (libgomp/config/linux/mutex.c, do_wait). The
    # functions that wait for it are often reached by a jump, without a frame of omp_set_lock or GOMP_critical_start.
    locks = futex is not None and futex.value == 0xFFFFFFFF and thread.module_name(0).startswith(_GNU_OPENMP)
    if locks or thread.level_of(FunctionTag.OPENMP_LOCK, within=12) is not None:
        return Wait(Resource(WaitKind.MUTEX, address, "OpenMP lock or critical section")) if futex else None
    if is_idle_worker(thread):
        return Wait(Resource(WaitKind.WORKER_POOL, address, OPENMP.name))
    if not futex:
        return None
    if is_worker(thread):  # a barrier inside a region: the others must arrive, and the master with them
        mates = [other for other in thread.process.threads if other is not thread and is_in_a_team(other)]
        return _wait_for_team_mates(thread, Resource(WaitKind.BARRIER, address, OPENMP.name), mates)
    return _wait_of_master(thread, address)


def openmp_pool_of(thread: ThreadSnapshot) -> Pool | None:
    return OPENMP if is_idle_worker(thread) else None


def is_idle_worker(thread: ThreadSnapshot) -> bool:
    """A pool thread with nothing but the OpenMP runtime on its stack: it waits, or spins, for work."""
    level = _innermost_openmp_frame(thread)
    if level is None or not is_worker(thread):
        return False
    modules = (thread.module_name(at) for at in range(level, len(thread.frames)))
    return all(module.startswith((*_OPENMP_LIBRARIES, *_LIBC, "ld-")) for module in modules)


def _innermost_openmp_frame(thread: ThreadSnapshot) -> int | None:
    """The level of the OpenMP runtime's innermost frame, with nothing but libc (through which libiomp5 waits) below."""
    for level in range(min(5, len(thread.frames))):
        module = thread.module_name(level)
        if module.startswith(_OPENMP_LIBRARIES):
            return level
        if not module.startswith(_LIBC):
            return None
    return None


def is_worker(thread: ThreadSnapshot) -> bool:
    """True if an OpenMP runtime started the thread: the outermost frames are libc's, then the runtime's."""
    for level in range(len(thread.frames) - 1, max(len(thread.frames) - 6, -1), -1):
        module = thread.module_name(level)
        if module.startswith(_OPENMP_LIBRARIES):
            return True
        if module and not module.startswith((*_LIBC, "ld-")):
            return False
    return False


def _wait_of_master(thread: ThreadSnapshot, address: int) -> Wait:
    """The wait of a team's master, on the futex at ``address``: to start, at a barrier, or to end the region. (The
    entry to a region often has no frame: GOMP_parallel jumps to the function that waits.)"""
    process = thread.process
    workers = [other for other in process.threads if other is not thread and is_worker(other)]
    resource = Resource(WaitKind.WORKER_POOL, address, OPENMP.name)
    total = _barrier_total(thread, address)
    if workers and (total is None or len(workers) >= total - 1):
        return _wait_for_team_mates(thread, resource, workers)
    if total is None and thread.module_name(0).startswith(_GNU_OPENMP):
        return Wait(resource, evidence=("it waits inside the OpenMP runtime for something unknown",))
    if len(process.tids) == 1:
        started = f"{'the only thread' if workers else 'no thread'} of this process"
    else:
        started = f"{len(workers) or 'none'} of the {len(process.tids):,} threads of this process"
    evidence = [
        "it waits inside the OpenMP runtime for the other threads of its team",
        f"{started} was started by the OpenMP runtime",
    ]
    if total is not None:
        evidence.append(f"the barrier at {address - 4:#x} is for {counted(total, 'thread')}")
    forked = process.fork_evidence
    missing = MissingWorkers(OPENMP, len(workers), forked=bool(forked) or total is not None)
    return Wait(resource, evidence=(*evidence, *forked), detail=AbsentWorkers(missing))


def _barrier_total(thread: ThreadSnapshot, generation: int) -> int | None:
    """The number of threads of the gomp_barrier_t with its futex at ``generation`` (libgomp/config/linux/bar.h): total
    +0, generation +4, and in the next cache line awaited +64. None if the numbers make no sense."""
    is_gnu = thread.module_name(0).startswith(_GNU_OPENMP)
    raw = thread.process.memory.try_read(generation - 4, 68) if is_gnu else b""
    if not raw:
        return None
    total, awaited = int.from_bytes(raw[:4], "little"), int.from_bytes(raw[64:68], "little")
    return total if 2 <= total <= 8192 and 1 <= awaited <= total else None


def is_in_a_team(thread: ThreadSnapshot) -> bool:
    """True for an OpenMP worker, and for a thread with a frame of the runtime, which has started a region."""
    inner = range(min(len(thread.frames), INNER))
    return is_worker(thread) or any(thread.module_name(level).startswith(_OPENMP_LIBRARIES) for level in inner)


def _wait_for_team_mates(thread: ThreadSnapshot, resource: Resource, mates: list[ThreadSnapshot]) -> Wait:
    """The wait for team mates that are neither at the barrier ``resource`` nor idle, if these are surely its own."""
    generation = resource.address
    late = [
        mate.tid
        for mate in mates
        if not is_idle_worker(mate) and not (generation and mate.futex and mate.futex.address == generation)
    ]
    if not late:
        return Wait(resource, being_released=True, evidence=("all workers of the team have arrived",))
    if _barrier_total(thread, generation) is not None:
        raw = thread.process.memory.try_read(generation + 60, 8)  # awaited and, 4 bytes further, awaited_final
        missing = {int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4)} - {0}
        if missing and len(late) not in missing:
            counts = (
                f"its team lacks {counted(min(missing), 'thread')}, but {counted(len(late), 'thread')} may be meant"
            )
            return Wait(resource, evidence=(counts,))
    evidence = "workers that are in code outside of the OpenMP runtime have not arrived yet"
    return wait_for_threads(resource, late, OwnerCertainty.INFERRED, evidence)
