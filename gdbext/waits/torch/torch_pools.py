"""Idle workers of the thread pools of PyTorch and of the libraries below it, by their functions."""

from __future__ import annotations

from gdbext.model.threads.pool import Pool
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.snapshot import INNER, ThreadSnapshot

_POOLS = {
    FunctionTag.AUTOGRAD_POP: Pool.AUTOGRAD,
    FunctionTag.AUTOGRAD_THREAD: Pool.AUTOGRAD,
    FunctionTag.C10_POOL: Pool.C10,
    FunctionTag.GLOO_LOOP: Pool.GLOO_LOOP,
    FunctionTag.GLOO_QUEUE: Pool.GLOO_QUEUE,
    FunctionTag.STORE_DAEMON: Pool.STORE,
    FunctionTag.NCCL_WATCHDOG: Pool.NCCL,
    FunctionTag.RPC_POOL: Pool.RPC,
    FunctionTag.OPENBLAS_POOL: Pool.OPENBLAS,
    FunctionTag.PTHREADPOOL: Pool.PTHREADPOOL,
}
"""The function in which a worker waits → its pool."""
_BETWEEN = 14
"""Frames from the kernel up to a pool's main function while it waits for work (condvar, std::, lambda wrappers)."""
_AT_WORK = (
    FunctionTag.AUTOGRAD_MAIN,
    FunctionTag.AUTOGRAD_EVALUATE,
    FunctionTag.EVALUATES,
    FunctionTag.COLLECTIVE,
    FunctionTag.STORE,
    FunctionTag.DEVICE,
)
"""Functions inside the pool's that only a worker with a job is in."""


def pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The pool whose idle worker this is, None for a thread that works or is not a worker."""
    for tag, pool in _POOLS.items():
        level = thread.first(tag, within=_BETWEEN)
        if level is None or not _is_of_the_pool(thread, tag, level):
            continue
        if not any(thread.inner_tags.get(busy, INNER) < level for busy in _AT_WORK):
            return pool
    return None


def _is_of_the_pool(thread: ThreadSnapshot, tag: FunctionTag, level: int) -> bool:
    """The function alone does not tell: a thread that calls backward pops from a ready queue, too, and any library may
    have a ``thread_main``."""
    if tag is FunctionTag.AUTOGRAD_POP:
        return FunctionTag.AUTOGRAD_THREAD in thread.inner_tags or FunctionTag.AUTOGRAD_THREAD in thread.outer_tags
    return tag is not FunctionTag.PTHREADPOOL or thread.module_name(level).startswith("libtorch")
