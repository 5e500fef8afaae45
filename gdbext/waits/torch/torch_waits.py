"""Waits that PyTorch's own functions give a meaning to: autograd, futures, collectives, devices.

The functions are recognised by their names (FunctionTag); below them there is only a condition variable, a futex or a
poll, which by itself says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.model.certainty import Certainty
from gdbext.model.threads.collective_wait import CollectiveWait
from gdbext.model.threads.pool import MissingWorkers, Pool
from gdbext.model.threads.wait import Owner, Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.fork_evidence import fork_evidence
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.snapshot import INNER, ThreadSnapshot
from gdbext.waits.torch.store_keys import key_of, server_of
from gdbext.waits.torch.torch_pools import pool_of

_OUTSIDE = {
    FunctionTag.NCCL: WaitKind.COLLECTIVE,
    FunctionTag.DEVICE: WaitKind.DEVICE,
    FunctionTag.MPI: WaitKind.COLLECTIVE,
    FunctionTag.COLLECTIVE: WaitKind.COLLECTIVE,
    FunctionTag.STORE: WaitKind.COLLECTIVE,
}
"""Functions that wait for a device or another rank."""
_WORKERS = {
    FunctionTag.FUTURE: (Pool.C10, FunctionTag.C10_POOL),
    FunctionTag.C10_POOL_WAIT: (Pool.C10, FunctionTag.C10_POOL),
    FunctionTag.PTHREADPOOL_WAIT: (Pool.PTHREADPOOL, FunctionTag.PTHREADPOOL),
}
"""Functions that wait for workers → their pool, and its main function."""
_MEANINGS = (*_OUTSIDE, FunctionTag.AUTOGRAD_EXECUTE, FunctionTag.STD_FUTURE, *_WORKERS)
_SPINNING = 16
"""Frames between the program counter and a device synchronisation that polls."""


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that is inside such a function and blocked, None for any other."""
    if thread.syscall is None:
        return None
    tag = min(filter(thread.inner_tags.__contains__, _MEANINGS), key=thread.inner_tags.__getitem__, default=None)
    if tag is None or _is_covered(thread, thread.inner_tags[tag]):
        return None
    level = thread.inner_tags[tag]
    address = thread.syscall.arguments[0] if thread.syscall.name == "futex" else 0
    name = _name_of(thread, level)
    if tag in _OUTSIDE:
        resource = Resource(_OUTSIDE[tag], address, f"{name}{_context(thread, level)}")
        store = _store_wait(thread, level, name) if tag is FunctionTag.STORE else None
        return Wait(resource, evidence=(f"frame {level}: {name}",), collective=store)
    if tag is FunctionTag.AUTOGRAD_EXECUTE:
        return _graph_task(thread, address, f"frame {level}: {name} waits for its graph task")
    if tag is FunctionTag.STD_FUTURE:
        return Wait(Resource(WaitKind.CONDVAR, address, "std::future"), evidence=(f"frame {level}: {name}",))
    return _for_workers(thread, tag, address, f"frame {level}: {name}")


def _context(thread: ThreadSnapshot, level: int) -> str:
    """What the thread is about further out: it does not change what is waited for."""
    backward = (FunctionTag.AUTOGRAD_EXECUTE, FunctionTag.AUTOGRAD_MAIN, FunctionTag.AUTOGRAD_EVALUATE)
    outer = (tag for tag in backward if thread.inner_tags.get(tag, -1) > level)
    return ", during backward" if any(outer) else ""


def spinning_device(thread: ThreadSnapshot) -> Wait | None:
    """A device synchronisation that spins instead of sleeping: the thread runs, and still only waits."""
    level = thread.first(FunctionTag.DEVICE, within=_SPINNING)
    if level is None or _is_covered(thread, level):
        return None
    name = _name_of(thread, level)
    return Wait(Resource(WaitKind.DEVICE, 0, name), evidence=(f"frame {level}: {name} (it polls the device)",))


def _store_wait(thread: ThreadSnapshot, level: int, name: str) -> CollectiveWait:
    return CollectiveWait(name, is_store=True, key=key_of(thread, level), server=server_of(thread))


def polling_store(thread: ThreadSnapshot) -> Wait | None:
    """The store's server, which counts its clients again and again: the thread runs, and still only waits."""
    level = thread.first(FunctionTag.STORE, within=_SPINNING)
    if level is None or _is_covered(thread, level):
        return None
    name = _name_of(thread, level)
    resource, evidence = Resource(WaitKind.COLLECTIVE, 0, name), (f"frame {level}: {name} (it polls)",)
    return Wait(resource, evidence=evidence, collective=CollectiveWait(name, is_store=True))


def _is_covered(thread: ThreadSnapshot, level: int) -> bool:
    """Python or an operator runs inside of that function: the wait is theirs."""
    inside = (FunctionTag.EVALUATES, FunctionTag.AUTOGRAD_EVALUATE)
    if any(thread.inner_tags.get(tag, INNER) < level for tag in inside):
        return True
    return any(step.level < level for step in thread.dispatch)


def _name_of(thread: ThreadSnapshot, level: int) -> str:
    function = thread.stack.function(level)
    return function.demangled[0].split("(")[0] if function is not None else ""


def _graph_task(thread: ThreadSnapshot, address: int, evidence: str) -> Wait:
    """Engine::execute waits for its graph task, which the engine's device threads must finish.

    On the CPU alone the calling thread does the work itself; it waits only where other threads have some of it.
    """
    workers = _threads_of(thread, FunctionTag.AUTOGRAD_THREAD)
    resource = Resource(WaitKind.QUEUE, address, "autograd graph task")
    if not workers:
        none_seen = "no thread has Engine::thread_init on its stack"
        return _without_workers(thread, resource, Pool.AUTOGRAD, (evidence, none_seen))
    return _for_those_at_work(resource, workers, evidence)


def _for_workers(thread: ThreadSnapshot, tag: FunctionTag, address: int, where: str) -> Wait:
    """The wait for the workers of a pool, or for a future that any other thread may complete."""
    pool, main_function = _WORKERS[tag]
    resource = Resource(WaitKind.WORKER_POOL, address, pool.value)
    evidence = f"{where} waits for what the {pool.value} does"
    workers = _threads_of(thread, main_function)
    if workers:
        return _for_those_at_work(resource, workers, evidence)
    if tag is FunctionTag.FUTURE and any(map(_may_complete, _others(thread))):
        return Wait(Resource(WaitKind.CONDVAR, address, "c10::ivalue::Future"), evidence=(evidence,))
    none_seen = "no thread has the pool's main function on its stack"
    return _without_workers(thread, resource, pool, (evidence, none_seen))


def _without_workers(thread: ThreadSnapshot, resource: Resource, pool: Pool, evidence: tuple[str, ...]) -> Wait:
    """A wait for workers that are not there; that they vanished in a fork is said only where something shows one."""
    forked = fork_evidence(thread.process)
    return Wait(resource, missing=MissingWorkers(pool, forked=bool(forked)), evidence=(*evidence, *forked))


def _may_complete(other: ThreadSnapshot) -> bool:
    """The thread may complete a future: it is no idle worker, and waits for none itself."""
    return other.first(FunctionTag.FUTURE) is None and pool_of(other) is None


def _threads_of(thread: ThreadSnapshot, main_function: FunctionTag) -> Sequence[ThreadSnapshot]:
    return [other for other in _others(thread) if main_function in other.outer_tags]


def _others(thread: ThreadSnapshot) -> Sequence[ThreadSnapshot]:
    return [other for other in thread.process.threads if other is not thread]


def _for_those_at_work(resource: Resource, workers: Sequence[ThreadSnapshot], evidence: str) -> Wait:
    """A wait for workers: those that are at work must finish."""
    owners = tuple(Owner(worker.tid) for worker in workers if pool_of(worker) is None)
    if not owners:
        return Wait(resource, evidence=(evidence, "all of them wait for work"))
    return Wait(resource, owners[0], Certainty.INFERRED, evidence=(evidence,), others=owners[1:])
