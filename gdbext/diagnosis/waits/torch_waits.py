"""Waits in PyTorch's functions, recognized by name: below them is only a futex, poll or sleep without a meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi.assumed_names import POPEN_PID, POPEN_WAITS, PROCESS_POPEN
from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.wait import OwnerCertainty, Wait
from gdbext.diagnosis.report.wait_detail import NO_DETAIL, AbsentWorkers, DeviceCall, OtherEnd, OtherRanks
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
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
from gdbext.diagnosis.waits.pool_workers import has_pool_main, native_pool_of
from gdbext.diagnosis.waits.snapshot import INNER, process_list, wait_for_threads
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
    from collections.abc import Collection, Sequence

    from gdbext.cpython.objects.py_ref import PyRef
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.cpython.threads.frame_variables import PyStack
    from gdbext.diagnosis.report.thread_report import Frame
    from gdbext.diagnosis.report.wait_detail import WaitDetail
    from gdbext.diagnosis.waits.snapshot import Tag, ThreadSnapshot
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.targets.system.peer import ChildProcess

_LOWEST = 0x10000
"""Addresses below are never mapped (vm.mmap_min_addr)."""


def _string_at(memory: Memory, address: int, limit: int) -> str:
    """The std::string of up to 512 printable characters at an address, "" if there is none."""
    # Pointer and length, then up to 15 characters in place (basic_string.h of libstdc++, the ABI of C++11), 0 after.
    head = memory.try_read(address, 16)
    start, size = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little")
    if not 0 < size <= 512 or not _LOWEST <= start < limit or (size < 16) != (start == address + 16):
        return ""
    raw = memory.try_read(start, size + 1)
    is_text = raw and not raw[-1] and raw[:-1].isascii() and raw[:-1].decode("ascii").isprintable()
    return raw[:-1].decode("ascii") if is_text else ""


_STRING_SIZE = 32
"""Bytes of a std::string."""
_MAX_KEYS = 4096
"""Most keys of one request."""


def _store_keys(thread: ThreadSnapshot, level: int) -> tuple[str, str]:
    """(the key for which the store's client waits, the last one if it waits for several at once): the most frequent
    std::string in frames ``level`` to ``level`` + 2 (doWait, doGet, get), and those that follow it in a vector; "" if
    there is none."""
    memory, limit = thread.process.memory, thread.process.memory.architecture.user_limit
    places: dict[str, list[int]] = {}  # string → addresses of its objects
    frames = range(level, min(level + 3, len(thread.frames)))
    for value in (value for at in frames for value in thread.values(at) if _LOWEST <= value < limit):
        if text := _string_at(memory, value, limit):
            places.setdefault(text, []).append(value)
    # c10/util/WaitCounter.h puts names of counters into these frames, too.
    texts = [text for text in places if not text.startswith("pytorch.wait_counter.")]
    # A prefix store's own, shorter key may be there as often as the whole one.
    key = max(texts, key=lambda text: (len(places[text]), len(text)), default="")
    stem, last = key.rstrip("0123456789"), ""
    for place in set(places.get(key, ())) if stem != key else ():
        for number in range(1, _MAX_KEYS):
            following = _string_at(memory, place + number * _STRING_SIZE, limit)
            if following.rstrip("0123456789") != stem or following == key:
                break
            last = following
    return key, last


_LOADER_DEPTH = 12
"""Innermost Python frames that are searched for the loader's iterator."""
_MAX_WORKERS = 64


class AwaitedBatch(NamedTuple):
    """The worker processes of a DataLoader that may bring the batch that it waits for."""

    pids: tuple[int, ...]
    number: int | None = None
    """The batch's number, from 0; None if unknown, and then also which worker makes it."""


def awaited_batch(stack: PyStack) -> AwaitedBatch | None:
    """The batch for which a DataLoader waits, by its innermost frame; None without one. It comes from one worker if
    the loader keeps the order, else (or if that is unknown) from any of them."""
    for frame in stack[:_LOADER_DEPTH]:
        if not frame.file.endswith(LOADER_FILE):
            continue
        iterator = stack.locals(frame)["self"]
        pids = [_pid_of(process) for process in iterator[LOADER_WORKERS].elements(_MAX_WORKERS)]
        if not any(pids):
            continue
        variables = iterator.variables()
        number, in_order = variables[LOADER_NEXT].int(), variables[LOADER_IN_ORDER]
        if number is not None and not (in_order and not in_order.int()):
            task = next((task for key, task in variables[LOADER_TASKS].items() if key.int() == number), None)
            parts = task.elements() if task is not None else ()
            worker = parts[0].int() if len(parts) == 1 else None
            if worker is not None and 0 <= worker < len(pids) and pids[worker]:
                return AwaitedBatch((pids[worker],), number)
        return AwaitedBatch(tuple(filter(None, pids)))
    return None


def _pid_of(process: PyRef) -> int:
    return process[PROCESS_POPEN][POPEN_PID].int() or 0


_JOIN_DEPTH = 6
"""Innermost Python frames that are searched for code that joins processes."""


def _is_call_of(frame: PythonFrame | Frame, functions: Collection[tuple[str, str]]) -> bool:
    """True if the frame runs one of these functions: (end of the file's path, function name)."""
    last_name = frame.function.rpartition(".")[2]
    return any(frame.file.endswith(ending) and last_name == name for ending, name in functions)


def joined_processes(stack: PyStack) -> tuple[int, ...]:
    """The pids whose exit is awaited through pipes, by a timed multiprocessing join or torch's spawn; else ()."""
    for frame in stack[:_JOIN_DEPTH]:
        if _is_call_of(frame, POPEN_WAITS):
            pid = stack.locals(frame)["self"][POPEN_PID].int()
            return (pid,) if pid else ()
        if _is_call_of(frame, SPAWN_JOINS):
            processes = stack.locals(frame)["self"][SPAWN_PROCESSES].elements(_MAX_WORKERS)
            return tuple(filter(None, map(_pid_of, processes)))
    return ()


def with_child_processes(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait, turned into one for child processes if the code above joins them or is a DataLoader's."""
    process, name, code = thread.process, "", ""
    children: tuple[ChildProcess, ...] = ()
    # The kinds of waits in which the loader waits, from version to version.
    below_loader = wait.kind in (WaitKind.IO, WaitKind.QUEUE, WaitKind.CONDVAR, WaitKind.SLEEP)
    if below_loader and any(frame.file.endswith(LOADER_FILE) for frame in thread.python[:_LOADER_DEPTH]):
        batch = awaited_batch(process.python.stack(thread.tid))
        if batch:
            children, code = process.processes(batch.pids), "DataLoader's code"
            name = f"the DataLoader's worker {process_list(children)}"
            name += f", which loads batch {batch.number}" if batch.number is not None else ""
    joins = (*POPEN_WAITS, *SPAWN_JOINS)
    if (
        not name
        and wait.kind is WaitKind.IO
        and any(_is_call_of(frame, joins) for frame in thread.python[:_JOIN_DEPTH])
    ):
        children = process.processes(joined_processes(process.python.stack(thread.tid)))
        name, code = f"child {process_list(children)}" if children else "", "the code that joins processes"
    if not name:
        return wait
    resource = Resource(WaitKind.CHILD_PROCESS, 0, name)
    evidence = (*wait.evidence, f"called by {code}, it {wait.phrase}")
    return wait._replace(resource=resource, evidence=evidence, detail=OtherEnd(wait.detail.peer, children))


_OUTSIDE: dict[Tag, WaitKind] = {
    FunctionTag.NCCL: WaitKind.COLLECTIVE,
    FunctionTag.DEVICE: WaitKind.DEVICE,
    FunctionTag.DEVICE_QUEUE: WaitKind.DEVICE,
    FunctionTag.MPI: WaitKind.COLLECTIVE,
    FunctionTag.COLLECTIVE: WaitKind.COLLECTIVE,
    FunctionTag.STORE: WaitKind.COLLECTIVE,
}
"""Functions that wait for a device or another rank."""


def torch_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread in a function of PyTorch or of the libraries below it; None for any other."""
    if not thread.syscall:
        return None
    meanings = {*_OUTSIDE, FunctionTag.AUTOGRAD_EXECUTE, FunctionTag.STD_FUTURE, FunctionTag.FUTURE}
    levels = {
        tag: level
        for tag, level in thread.inner_tags.items()
        if (tag.part is PoolPart.AWAITED if isinstance(tag, PoolFunction) else tag in meanings)
    }
    tag = min(levels, key=levels.__getitem__, default=None)
    if not tag or _is_covered(thread, levels[tag]):
        return None
    level = levels[tag]
    address = thread.syscall.arguments[0] if thread.syscall.name == "futex" else 0
    name = thread.function_name(level)
    frame = f"frame {level}: {name}"
    if isinstance(tag, PoolFunction):
        return _pool_wait(thread, tag.pool, address, frame)
    if _OUTSIDE.get(tag) is WaitKind.DEVICE:
        return _device_wait(thread, level, address)
    if tag in _OUTSIDE:
        resource = Resource(_OUTSIDE[tag], address, f"{name}{_backward_clause(thread, level)}")
        detail: WaitDetail = NO_DETAIL
        if tag is FunctionTag.STORE:
            socket = syscall_waits.syscall_wait(thread)
            server = socket.detail.peer.address if socket and socket.detail.peer else ""
            key, last_key = _store_keys(thread, level)
            store = CollectiveWait(name, is_store=True, key=key, server=server, last_key=last_key)
            detail = OtherRanks(store)
        return Wait(resource, evidence=(frame,), detail=detail)
    if tag is FunctionTag.STD_FUTURE:
        return Wait(Resource(WaitKind.CONDVAR, address, "std::future"), evidence=(frame,))
    if tag is FunctionTag.FUTURE:
        return _pool_wait(thread, C10, address, frame, is_future=True)
    # Engine::execute waits for its graph task, which the engine's device threads must finish. On the CPU alone the
    # calling thread does the work itself; it waits only if other threads have some of it.
    workers = _workers_of(thread, AUTOGRAD)
    resource = Resource(WaitKind.QUEUE, address, "autograd graph task")
    evidence = f"{frame} waits for its graph task"
    if workers:
        return _workers_wait(resource, workers, evidence)
    none_seen = "no thread has Engine::thread_init on its stack"
    return _absent_workers_wait(thread, resource, AUTOGRAD, evidence, none_seen)


def _backward_clause(thread: ThreadSnapshot, level: int) -> str:
    """``, during backward`` if a frame of autograd is further out than frame ``level``; else ""."""
    backward = (FunctionTag.AUTOGRAD_EXECUTE, FunctionTag.AUTOGRAD_MAIN, FunctionTag.AUTOGRAD_EVALUATE)
    return ", during backward" if any(thread.inner_tags.get(tag, -1) > level for tag in backward) else ""


def _device_wait(thread: ThreadSnapshot, level: int, address: int, evidence: str = "", polls: bool = False) -> Wait:
    """The wait in a call of a device's runtime or driver; frame ``level`` is its innermost one with a name.
    ``evidence`` replaces the name of the call; ``polls``: the thread runs."""
    from gdbext.diagnosis.waits.device_waits import device_wait  # 7 ms, where a device is waited for

    call = device_wait(thread, level, polls)
    resource = Resource(WaitKind.DEVICE, address, f"{call.call}{_backward_clause(thread, level)}")
    how = " (it polls the device)" if polls else ""
    inner = f", which called {call.driver_call}" if call.driver_call else ""
    evidence = evidence or f"{call.call}{inner}{how}"
    return Wait(resource, evidence=(f"frame {level}: {evidence}",), detail=DeviceCall(call))


def unnamed_driver_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that sleeps in a function of CUDA's driver without a name, None for any other."""
    level = len(thread.inner_libc_levels)
    if not thread.syscall or not thread.module_name(level).startswith(DRIVER_LIBRARY) or _is_covered(thread, level):
        return None
    return _device_wait(thread, level, 0, f"an unnamed function of {thread.module_name(level)}")


def polling_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that polls instead of sleeping: for a device, the store's server for its clients, or in a
    call of MPI."""
    for tag in (FunctionTag.DEVICE, FunctionTag.STORE, FunctionTag.MPI):
        level = thread.level_of(tag, within=32 if tag is FunctionTag.MPI else 16)
        if level is None or _is_covered(thread, level):
            continue
        if tag is FunctionTag.DEVICE:
            return _device_wait(thread, level, 0, polls=True)
        name = thread.function_name(level)
        evidence = f"frame {level}: {name} (it polls)"
        detail: WaitDetail = OtherRanks(CollectiveWait(name, is_store=True)) if tag is FunctionTag.STORE else NO_DETAIL
        return Wait(Resource(WaitKind.COLLECTIVE, 0, name), evidence=(evidence,), detail=detail)
    return None


def _is_covered(thread: ThreadSnapshot, level: int) -> bool:
    """True if Python or an operator runs inside the function of frame ``level``, so the wait is not that function's."""
    inside = (FunctionTag.EVAL_FUNCTIONS, FunctionTag.AUTOGRAD_EVALUATE)
    if any(thread.inner_tags.get(tag, INNER) < level for tag in inside):
        return True
    return any(step.level < level for step in thread.dispatch)


def _pool_wait(thread: ThreadSnapshot, pool: Pool, address: int, frame: str, is_future: bool = False) -> Wait:
    """The wait for the workers of a pool, or for a future that any other thread may complete."""
    resource = Resource(WaitKind.WORKER_POOL, address, pool.name)
    evidence = f"{frame} waits for the workers of a pool ({pool.name})"
    workers = _workers_of(thread, pool)
    if workers:
        return _workers_wait(resource, workers, evidence)
    others = (other for other in thread.process.threads if other is not thread)
    # any may complete the future, unless it is an idle worker or waits for one itself
    if is_future and any(not native_pool_of(other) and other.level_of(FunctionTag.FUTURE) is None for other in others):
        return Wait(Resource(WaitKind.CONDVAR, address, "c10::ivalue::Future"), evidence=(evidence,))
    none_seen = "no thread has the pool's main function on its stack"
    return _absent_workers_wait(thread, resource, pool, evidence, none_seen)


def _absent_workers_wait(thread: ThreadSnapshot, resource: Resource, pool: Pool, *evidence: str) -> Wait:
    """The wait for workers that do not exist; a fork is named as the reason only if something shows one."""
    forked = thread.process.fork_evidence
    detail = AbsentWorkers(MissingWorkers(pool, forked=bool(forked)))
    return Wait(resource, evidence=(*evidence, *forked), detail=detail)


def _workers_of(thread: ThreadSnapshot, pool: Pool) -> Sequence[ThreadSnapshot]:
    others = (other for other in thread.process.threads if other is not thread)
    return [other for other in others if has_pool_main(other.outer_tags, pool)]


def _workers_wait(resource: Resource, workers: Sequence[ThreadSnapshot], evidence: str) -> Wait:
    """A wait for those workers of a pool that have work to finish."""
    tids = [worker.tid for worker in workers if not native_pool_of(worker)]
    if not tids:
        return Wait(resource, evidence=(evidence, "all workers of the pool wait for work"))
    return wait_for_threads(resource, tids, OwnerCertainty.INFERRED, evidence)
