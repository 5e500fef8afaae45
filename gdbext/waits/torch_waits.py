"""Waits that PyTorch's own functions give a meaning to: pools, autograd, futures, collectives, devices.

The functions are recognised by their names (marks.py); below them there is only a condition variable, a futex or a
poll, which by itself says nothing.
"""

from __future__ import annotations

from gdbext.model.certainty import Certainty
from gdbext.model.pool import MissingWorkers, Pool
from gdbext.model.wait import Owner, Resource, Wait
from gdbext.model.wait_kind import WaitKind
from gdbext.waits.snapshot import INNER, ThreadSnapshot

_POOLS = {
    "autograd-pop": (Pool.AUTOGRAD, ("autograd-thread",)),
    "autograd-thread": (Pool.AUTOGRAD, ()),
    "c10-pool": (Pool.C10, ()),
    "gloo-loop": (Pool.GLOO_LOOP, ()),
    "gloo-queue": (Pool.GLOO_QUEUE, ()),
    "store-daemon": (Pool.STORE, ()),
    "nccl-watchdog": (Pool.NCCL, ()),
    "rpc-pool": (Pool.RPC, ()),
    "blas-pool": (Pool.OPENBLAS, ()),
    "pthreadpool": (Pool.PTHREADPOOL, ()),
}
"""Mark of a pool's waiting function → the pool, and marks that must be there as well."""
_MEANINGS = ("nccl", "device", "mpi", "collective", "store", "autograd-execute", "future", "std-future",
             "c10-pool-wait", "pthreadpool-wait")  # fmt: skip
_BETWEEN = 14
"""Frames from the kernel up to a pool's main function while it waits for work (condvar, std::, lambda wrappers)."""
_BUSY_MARKS = ("autograd-main", "autograd-evaluate", "eval", "collective", "store", "device")


_WORKERS_FOR = {
    "future": (Pool.C10, "c10-pool"),
    "c10-pool-wait": (Pool.C10, "c10-pool"),
    "pthreadpool-wait": (Pool.PTHREADPOOL, "pthreadpool"),
}
"""Mark of a function that waits for workers → their pool, and the mark of its main function."""


def pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The pool whose idle worker this is, None for a thread that works or is not a worker."""
    for mark, (pool, needed) in _POOLS.items():
        level = thread.first(mark, within=_BETWEEN)
        if level is None or any(name not in thread.inner_marks and name not in thread.outer_marks for name in needed):
            continue
        if mark == "pthreadpool" and not thread.module_name(level).startswith("libtorch"):
            continue  # "thread_main" is anybody's name
        if not any(thread.inner_marks.get(busy, INNER) < level for busy in _BUSY_MARKS):
            return pool
    return None


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that is inside such a function and blocked, None for any other."""
    if thread.syscall is None:
        return None
    address = thread.syscall.arguments[0] if thread.syscall.name == "futex" else 0
    inside = _innermost(thread, *_MEANINGS)
    if inside is None:
        return None
    mark, level = inside
    if _is_covered(thread, level):
        return None
    name = _name_of(thread, level)
    if mark in ("nccl", "mpi", "collective", "store"):
        return Wait(Resource(WaitKind.COLLECTIVE, address, name), evidence=(f"frame {level}: {name}",))
    if mark == "device":
        return Wait(Resource(WaitKind.DEVICE, address, name), evidence=(f"frame {level}: {name}",))
    if mark == "autograd-execute":
        return _graph_task(thread, address, level)
    if mark == "std-future":
        return Wait(Resource(WaitKind.CONDVAR, address, "std::future"), evidence=(f"frame {level}: {name}",))
    pool, mark_of_worker = _WORKERS_FOR[mark]
    resource = Resource(WaitKind.WORKER_POOL, address, pool.value)
    evidence = f"frame {level}: {name} waits for what the {pool.value} does"
    others = [other for other in thread.process.threads if other is not thread]
    if any(mark_of_worker in other.outer_marks for other in others):
        working = [Owner(other.tid) for other in others if mark_of_worker in other.outer_marks and not pool_of(other)]
        return _for_owners(resource, working, evidence)
    if mark == "future" and any(other.first("future") is None and not pool_of(other) for other in others):
        return Wait(Resource(WaitKind.CONDVAR, address, "c10::ivalue::Future"), evidence=(evidence,))
    return Wait(
        resource,
        missing=MissingWorkers(pool),
        evidence=(evidence, "no thread has the pool's main function on its stack"),
    )


def spinning_device(thread: ThreadSnapshot) -> Wait | None:
    """A device synchronisation that spins instead of sleeping: the thread runs, and still only waits."""
    level = thread.first("device", within=16)
    if level is None or _is_covered(thread, level):
        return None
    name = _name_of(thread, level)
    return Wait(Resource(WaitKind.DEVICE, 0, name), evidence=(f"frame {level}: {name} (it polls the device)",))


def _innermost(thread: ThreadSnapshot, *marks: str) -> tuple[str, int] | None:
    found = [(thread.inner_marks[mark], mark) for mark in marks if mark in thread.inner_marks]
    if not found:
        return None
    level, mark = min(found)
    return mark, level


def _is_covered(thread: ThreadSnapshot, level: int) -> bool:
    """Python or an operator runs inside of that function: the wait is theirs."""
    if thread.inner_marks.get("eval", INNER) < level or thread.inner_marks.get("autograd-evaluate", INNER) < level:
        return True
    return any(step.level < level for step in thread.dispatch)


def _name_of(thread: ThreadSnapshot, level: int) -> str:
    function = thread.stack.function(level)
    return function.demangled[0].split("(")[0] if function is not None else ""


def _graph_task(thread: ThreadSnapshot, address: int, level: int) -> Wait:
    """Engine::execute waits for its graph task, which the engine's device threads must finish.

    On the CPU alone the calling thread does the work itself; it waits only where other threads have some of it.
    """
    process = thread.process
    workers = [other for other in process.threads if other is not thread and "autograd-thread" in other.outer_marks]
    resource = Resource(WaitKind.QUEUE, address, "autograd graph task")
    evidence = (f"frame {level}: {_name_of(thread, level)} waits for its graph task",)
    if not workers:
        none_seen = "no thread has Engine::thread_init on its stack"
        return Wait(resource, missing=MissingWorkers(Pool.AUTOGRAD), evidence=(*evidence, none_seen))
    working = [Owner(worker.tid) for worker in workers if not pool_of(worker)]
    return _for_owners(resource, working, *evidence)


def _for_owners(resource: Resource, working: list[Owner], *evidence: str) -> Wait:
    """A wait for workers: those that are at work must finish."""
    if not working:
        return Wait(resource, evidence=(*evidence, "all of them wait for work"))
    return Wait(resource, working[0], Certainty.INFERRED, evidence=evidence, others=tuple(working[1:]))
