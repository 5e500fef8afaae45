"""Waits in PyTorch's functions: autograd, futures, collectives, devices, stores, DataLoader workers.

The functions are recognised by their names (FunctionTag); below them there is only a condition variable, a futex or a
poll, which by itself says nothing.

The key of a c10d store and its server are read from the frames of the store's client. Below the DataLoader's code there
is only a queue, a poll or a sleep; what ends it is a child process.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi.assumed_names import POPEN_PID, POPEN_WAITS, PROCESS_POPEN
from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, Wait
from gdbext.diagnosis.report.wait_detail import NO_DETAIL, AbsentWorkers, DeviceCall, OtherEnd, OtherRanks
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits import syscall_waits
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.pool_table import (
    AUTOGRAD,
    C10,
    DRIVER_LIBRARY,
    MissingWorkers,
    Pool,
    PoolFunction,
    PoolPart,
)
from gdbext.diagnosis.waits.pool_workers import native_pool_of, runs
from gdbext.diagnosis.waits.snapshot import INNER, ThreadSnapshot, fork_evidence
from gdbext.engine.targets.system.peer import ChildProcess, listed
from gdbext.torch.torch_symbol import (
    LOADER_FILE,
    LOADER_IN_ORDER,
    LOADER_NEXT,
    LOADER_TASKS,
    LOADER_WORKERS,
    SPAWN_JOINS,
    SPAWN_PROCESSES,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from gdbext.cpython.objects.py_ref import PyRef, PyVariables
    from gdbext.cpython.threads.py_stack import PyStack
    from gdbext.diagnosis.waits.snapshot import Tag

_LONGEST = 512
_FRAMES = 3
"""Frames from the one that waits in which the key stands: doWait, doGet, get."""
_COUNTERS = "pytorch.wait_counter."
"""Names of counters, which stand in these frames, too (c10/util/WaitCounter.h)."""
_LOWEST = 0x10000


def key_of(thread: ThreadSnapshot, level: int) -> str:
    """The key: the text that these frames hold most often as a std::string; "" without one."""
    found: Counter[str] = Counter()
    for at in range(level, min(level + _FRAMES, len(thread.frames))):
        found.update(text for text in _strings(thread, at) if not text.startswith(_COUNTERS))
    return found.most_common(1)[0][0] if found else ""


def server_of(thread: ThreadSnapshot) -> str:
    """``127.0.0.1:29500``: the other end of the socket that the thread polls; "" where that is not known."""
    wait = syscall_waits.classify(thread)
    return wait.detail.peer.address if wait and wait.detail.peer else ""


def _strings(thread: ThreadSnapshot, level: int) -> Iterator[str]:
    """The texts of all std::string that a frame has a pointer to: pointer and length, then up to 15 characters in place
    (basic_string.h of libstdc++, the ABI of C++11), ended by a 0."""
    memory, limit = thread.process.memory, thread.process.memory.architecture.user_limit
    for value in thread.values(level):
        head = memory.try_read(value, 16) if _LOWEST <= value < limit else b""
        if not head:
            continue
        start, size = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little")
        if not 0 < size <= _LONGEST or not _LOWEST <= start < limit or (size < 16) != (start == value + 16):
            continue
        raw = memory.try_read(start, size + 1)
        if raw and not raw[-1] and raw[:-1].isascii() and raw[:-1].decode("ascii").isprintable():
            yield raw[:-1].decode("ascii")


LOADER_DEPTH = 12
"""Innermost Python frames in which the loader's iterator is looked for."""
_MAX_WORKERS = 64


def is_loader_file(file: str) -> bool:
    """True if a frame of this source file belongs to a DataLoader."""
    return file.endswith(LOADER_FILE)


class AwaitedBatch(NamedTuple):
    """The worker processes of a DataLoader that may bring the batch that it waits for."""

    pids: tuple[int, ...]
    number: int | None = None
    """The batch's number, counted from 0; None where it is not known, and so whose it is."""


def awaited_batch(stack: PyStack) -> AwaitedBatch | None:
    """The batch that is waited for, by the loader's innermost frame on the stack; None where it has none."""
    iterators = (stack.locals(frame)["self"] for frame in stack[:LOADER_DEPTH] if is_loader_file(frame.file))
    return next(filter(None, map(_batch_of, iterators)), None)


def _batch_of(iterator: PyRef) -> AwaitedBatch | None:
    """The batch that the iterator gives next, with the worker that makes it, or with all of them."""
    pids = [_pid_of(process) for process in iterator[LOADER_WORKERS].elements(_MAX_WORKERS)]
    number, worker = _next_task(iterator.variables()) if pids else (None, 0)
    if number is not None and 0 <= worker < len(pids) and pids[worker]:
        return AwaitedBatch((pids[worker],), number)
    return AwaitedBatch(tuple(pid for pid in pids if pid)) if any(pids) else None


def _pid_of(process: PyRef) -> int:
    """The pid of the child that a multiprocessing.Process started, 0 where it has none."""
    return process[PROCESS_POPEN][POPEN_PID].int() or 0


def _next_task(own: PyVariables) -> tuple[int | None, int]:
    """The number of the next batch and of the worker that has to bring it; (None, 0) where that cannot be known."""
    number, in_order = own[LOADER_NEXT].int(), own[LOADER_IN_ORDER]
    if number is None or (in_order and not in_order.int()):
        return None, 0
    task = next((task for key, task in own[LOADER_TASKS].items() if key.int() == number), None)
    parts = task.elements() if task is not None else ()
    worker = parts[0].int() if len(parts) == 1 else None
    return (None, 0) if worker is None else (number, worker)


_BELOW = (WaitKind.IO, WaitKind.QUEUE, WaitKind.CONDVAR, WaitKind.SLEEP)
"""Kinds of waits that the loader waits in, from version to version."""


_JOIN_DEPTH = 6
"""Innermost Python frames in which it is looked for who waits for the end of processes."""


def joined_processes(stack: PyStack) -> tuple[int, ...]:
    """The pids whose end is waited for through their pipes (join of multiprocessing with a limit, or of torch's spawn);
    () where that is not what the thread does."""
    for frame in stack[:_JOIN_DEPTH]:
        if _is_join(frame.file, frame.function, POPEN_WAITS):
            pid = stack.locals(frame)["self"][POPEN_PID].int()
            return (pid,) if pid else ()
        if _is_join(frame.file, frame.function, SPAWN_JOINS):
            processes = stack.locals(frame)["self"][SPAWN_PROCESSES].elements(_MAX_WORKERS)
            return tuple(filter(None, map(_pid_of, processes)))
    return ()


def _is_join(file: str, function: str, functions: Collection[tuple[str, str]]) -> bool:
    return any(file.endswith(ending) and function.rpartition(".")[2] == name for ending, name in functions)


def for_processes(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait for the end of child processes, or for what the loader's workers bring; ``wait`` itself for others."""
    found = for_workers(thread, wait)
    if found is not wait or wait.kind is not WaitKind.IO:
        return found
    if not any(
        _is_join(frame.file, frame.function, (*POPEN_WAITS, *SPAWN_JOINS)) for frame in thread.python[:_JOIN_DEPTH]
    ):
        return wait
    children = _children(thread, joined_processes(thread.process.python.stack(thread.tid)))
    if not children:
        return wait
    resource = Resource(
        WaitKind.CHILD_PROCESS, 0, f"child process{'es' if len(children) > 1 else ''} {listed(children)}"
    )
    return _for_children(wait, resource, children, "the code that joins processes")


def _children(thread: ThreadSnapshot, pids: Sequence[int]) -> tuple[ChildProcess, ...]:
    known = thread.process.procfs.children()
    return tuple(known.get(pid, ChildProcess(pid)) for pid in pids)


def for_workers(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait for the loader's workers, or ``wait`` itself where no loader is above it."""
    batch = _awaited_batch(thread) if wait.kind in _BELOW else None
    if not batch:
        return wait
    workers = _children(thread, batch.pids)
    name = f"the DataLoader's worker process{'es' if len(workers) > 1 else ''} {listed(workers)}"
    if batch.number is not None:
        name += f", which makes batch {batch.number}"
    return _for_children(wait, Resource(WaitKind.CHILD_PROCESS, 0, name), workers, "DataLoader's code")


def _for_children(wait: Wait, resource: Resource, children: tuple[ChildProcess, ...], code: str) -> Wait:
    """The wait of that code for child processes, by another wait."""
    evidence = (*wait.evidence, f"below {code} it {wait.phrase}")
    return wait._replace(resource=resource, evidence=evidence, detail=OtherEnd(wait.detail.peer, children))


def _awaited_batch(thread: ThreadSnapshot) -> AwaitedBatch | None:
    """The batch that the DataLoader waits for that the thread is in, None where it is in none."""
    if not any(is_loader_file(frame.file) for frame in thread.python[:LOADER_DEPTH]):
        return None
    return awaited_batch(thread.process.python.stack(thread.tid))


_OUTSIDE = {
    FunctionTag.NCCL: WaitKind.COLLECTIVE,
    FunctionTag.DEVICE: WaitKind.DEVICE,
    FunctionTag.DEVICE_QUEUE: WaitKind.DEVICE,
    FunctionTag.MPI: WaitKind.COLLECTIVE,
    FunctionTag.COLLECTIVE: WaitKind.COLLECTIVE,
    FunctionTag.STORE: WaitKind.COLLECTIVE,
}  # type: dict[Tag, WaitKind]
"""Functions that wait for a device or another rank."""
_MEANINGS = (*_OUTSIDE, FunctionTag.AUTOGRAD_EXECUTE, FunctionTag.STD_FUTURE, FunctionTag.FUTURE)
_SPINNING = 16
"""Frames between the program counter and a device synchronisation that polls."""


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that is inside such a function and blocked, None for any other."""
    if not thread.syscall:
        return None
    tag = min(filter(_has_meaning, thread.inner_tags), key=thread.inner_tags.__getitem__, default=None)
    if not tag or _is_covered(thread, thread.inner_tags[tag]):
        return None
    level = thread.inner_tags[tag]
    address = thread.syscall.arguments[0] if thread.syscall.name == "futex" else 0
    name = _name_of(thread, level)
    if isinstance(tag, PoolFunction):
        return _for_pool(thread, tag.pool, address, f"frame {level}: {name}")
    if _OUTSIDE.get(tag) is WaitKind.DEVICE:
        return _for_device(thread, level, address)
    if tag in _OUTSIDE:
        resource = Resource(_OUTSIDE[tag], address, f"{name}{_context(thread, level)}")
        store = _store_wait(thread, level, name) if tag is FunctionTag.STORE else None
        return Wait(resource, evidence=(f"frame {level}: {name}",), detail=OtherRanks(store) if store else NO_DETAIL)
    if tag is FunctionTag.AUTOGRAD_EXECUTE:
        return _graph_task(thread, address, f"frame {level}: {name} waits for its graph task")
    if tag is FunctionTag.STD_FUTURE:
        return Wait(Resource(WaitKind.CONDVAR, address, "std::future"), evidence=(f"frame {level}: {name}",))
    return _for_pool(thread, C10, address, f"frame {level}: {name}", is_future=True)


def _has_meaning(tag: Tag) -> bool:
    """A thread inside such a function waits for what the function is about."""
    return tag.part is PoolPart.AWAITED if isinstance(tag, PoolFunction) else tag in _MEANINGS


def _context(thread: ThreadSnapshot, level: int) -> str:
    """The context of the thread further out: it does not change what is waited for."""
    backward = (FunctionTag.AUTOGRAD_EXECUTE, FunctionTag.AUTOGRAD_MAIN, FunctionTag.AUTOGRAD_EVALUATE)
    outer = (tag for tag in backward if thread.inner_tags.get(tag, -1) > level)
    return ", during backward" if any(outer) else ""


def spinning_device(thread: ThreadSnapshot) -> Wait | None:
    """A device synchronisation that spins instead of sleeping: the thread runs, and still only waits."""
    level = thread.first(FunctionTag.DEVICE, within=_SPINNING)
    if level is None or _is_covered(thread, level):
        return None
    return _for_device(thread, level, 0, polls=True)


def _for_device(thread: ThreadSnapshot, level: int, address: int, seen: str = "", polls: bool = False) -> Wait:
    """The wait in a call of a device's runtime or driver, of which ``level`` is the innermost frame with a name;
    ``seen``: what shows that, where no name does."""
    from gdbext.diagnosis.waits.device_waits import device_wait  # 7 ms, where a device is waited for

    found = device_wait(thread, level, polls)
    resource = Resource(WaitKind.DEVICE, address, f"{found.call}{_context(thread, level)}")
    how = " (it polls the device)" if polls else ""
    inner = f", below it {found.driver_call}" if found.driver_call else ""
    seen = seen or f"{found.call}{inner}{how}"
    return Wait(resource, evidence=(f"frame {level}: {seen}",), detail=DeviceCall(found))


def driver_without_name(thread: ThreadSnapshot) -> Wait | None:
    """A thread that sleeps in CUDA's driver, in a function that has no name; its library is all that is known."""
    level = len(thread.inner_libc_levels)
    if not thread.syscall or not thread.module_name(level).startswith(DRIVER_LIBRARY) or _is_covered(thread, level):
        return None
    return _for_device(thread, level, 0, f"a function of {thread.module_name(level)} without a name")


def _store_wait(thread: ThreadSnapshot, level: int, name: str) -> CollectiveWait:
    return CollectiveWait(name, is_store=True, key=key_of(thread, level), server=server_of(thread))


def polling_store(thread: ThreadSnapshot) -> Wait | None:
    """The store's server, which counts its clients again and again: the thread runs, and still only waits."""
    level = thread.first(FunctionTag.STORE, within=_SPINNING)
    if level is None or _is_covered(thread, level):
        return None
    name = _name_of(thread, level)
    resource, evidence = Resource(WaitKind.COLLECTIVE, 0, name), (f"frame {level}: {name} (it polls)",)
    return Wait(resource, evidence=evidence, detail=OtherRanks(CollectiveWait(name, is_store=True)))


def _is_covered(thread: ThreadSnapshot, level: int) -> bool:
    """Python or an operator runs inside of that function: the wait is theirs."""
    inside = (FunctionTag.EVAL_FUNCTIONS, FunctionTag.AUTOGRAD_EVALUATE)
    if any(thread.inner_tags.get(tag, INNER) < level for tag in inside):
        return True
    return any(step.level < level for step in thread.dispatch)


def _name_of(thread: ThreadSnapshot, level: int) -> str:
    function = thread.stack.function(level)
    return function.demangled[0].split("(")[0] if function else ""


def _graph_task(thread: ThreadSnapshot, address: int, evidence: str) -> Wait:
    """Engine::execute waits for its graph task, which the engine's device threads must finish.

    On the CPU alone the calling thread does the work itself; it waits only where other threads have some of it.
    """
    workers = _workers_of(thread, AUTOGRAD)
    resource = Resource(WaitKind.QUEUE, address, "autograd graph task")
    if not workers:
        none_seen = "no thread has Engine::thread_init on its stack"
        return _without_workers(thread, resource, AUTOGRAD, (evidence, none_seen))
    return _for_those_at_work(resource, workers, evidence)


def _for_pool(thread: ThreadSnapshot, pool: Pool, address: int, where: str, is_future: bool = False) -> Wait:
    """The wait for the workers of a pool, or for a future that any other thread may complete."""
    resource = Resource(WaitKind.WORKER_POOL, address, pool.name)
    evidence = f"{where} waits for what the {pool.name} does"
    workers = _workers_of(thread, pool)
    if workers:
        return _for_those_at_work(resource, workers, evidence)
    if is_future and any(map(_may_complete, _others(thread))):
        return Wait(Resource(WaitKind.CONDVAR, address, "c10::ivalue::Future"), evidence=(evidence,))
    none_seen = "no thread has the pool's main function on its stack"
    return _without_workers(thread, resource, pool, (evidence, none_seen))


def _without_workers(thread: ThreadSnapshot, resource: Resource, pool: Pool, evidence: tuple[str, ...]) -> Wait:
    """A wait for workers that are not there; that they vanished in a fork is said only where something shows one."""
    forked = fork_evidence(thread.process)
    missing = MissingWorkers(pool, forked=bool(forked))
    return Wait(resource, evidence=(*evidence, *forked), detail=AbsentWorkers(missing))


def _may_complete(other: ThreadSnapshot) -> bool:
    """The thread may complete a future: it is no idle worker, and waits for none itself."""
    return other.first(FunctionTag.FUTURE) is None and native_pool_of(other) is None


def _workers_of(thread: ThreadSnapshot, pool: Pool) -> Sequence[ThreadSnapshot]:
    return [other for other in _others(thread) if runs(other.outer_tags, pool)]


def _others(thread: ThreadSnapshot) -> Sequence[ThreadSnapshot]:
    return [other for other in thread.process.threads if other is not thread]


def _for_those_at_work(resource: Resource, workers: Sequence[ThreadSnapshot], evidence: str) -> Wait:
    """A wait for workers: those that are at work must finish."""
    owners = tuple(OwnerThread(worker.tid) for worker in workers if not native_pool_of(worker))
    if not owners:
        return Wait(resource, evidence=(evidence, "all of them wait for work"))
    return Wait(resource, owners[0], OwnerCertainty.INFERRED, evidence=(evidence,), others=owners[1:])
