"""Idle workers of pools, by the functions of their rows in diagnosis/waits/pool_table.py: by the native functions that
they wait in, or by their innermost Python frames."""

from __future__ import annotations

from collections.abc import Iterable

from gdbext.cpython.abi import stdlib
from gdbext.diagnosis.report.thread_report import Frame
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.pool_table import NOTHING, Pool, PoolFunction, PoolPart
from gdbext.diagnosis.waits.snapshot import INNER, Tag, ThreadSnapshot

_DEPTH = 5
"""Innermost Python frames of an idle worker, up to its main function."""


def python_pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The pool whose idle worker this is, None for a thread that works or is not a worker."""
    if thread.syscall is None or thread.dispatch:
        return None
    inner = [(_file(frame), frame.function.rpartition(".")[2]) for frame in thread.python[:_DEPTH]]
    for level, call in enumerate(inner):
        pool = thread.process.pools.python.get(call)
        if pool is not None:
            works = not level and call in pool.works_in
            return pool if not works and _only_waits(inner[:level], pool) else None
    return None


def _only_waits(inner: list[tuple[str, str]], pool: Pool) -> bool:
    """The frames above a pool's main loop are those of a worker without work."""
    if pool.idles_in is not None and inner[:1] != [pool.idles_in]:
        return False
    if tuple(inner[:2]) in _TAKES_TURNS:
        inner = inner[1:]
    return all(
        call in pool.waits_in or (call[0] in stdlib.WAITING_FILES and call not in stdlib.WORKING_CALLS)
        for call in inner
    )


_TAKES_TURNS = ((("synchronize.py", "__enter__"), ("queues.py", "get")),)
"""Innermost calls of a worker that waits for its turn to wait for work: one of them reads, the others queue for the
reader's lock."""


def _file(frame: Frame) -> str:
    return frame.file.rpartition("/")[2]


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


def native_pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The pool whose idle worker this is, None for a thread that works or is not a worker."""
    for tag, level in thread.inner_tags.items():
        if level >= _BETWEEN or not isinstance(tag, PoolFunction) or tag.part is not PoolPart.WAITS:
            continue
        if not _is_worker(thread, tag.pool, level):
            continue
        if not any(thread.inner_tags.get(busy, INNER) < level for busy in _AT_WORK):
            return tag.pool
    return None


def _is_worker(thread: ThreadSnapshot, pool: Pool, level: int) -> bool:
    """The function that waits alone does not always tell: its row says what else must be true."""
    if pool.main != NOTHING and not (runs(thread.inner_tags, pool) or runs(thread.outer_tags, pool)):
        return False
    return thread.module_name(level).startswith(pool.library)


def runs(tags: Iterable[Tag], pool: Pool) -> bool:
    """The main function of that pool's workers is among these."""
    return any(isinstance(tag, PoolFunction) and tag.part is PoolPart.MAIN and tag.pool == pool for tag in tags)
