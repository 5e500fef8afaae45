"""Clauses that sentences about threads are made of, in jstack's manner. Pure text; nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdbext.model.dispatch.dispatch_frame import DispatchFrame, DispatchStage
from gdbext.model.threads.event_loop import TaskState
from gdbext.model.threads.thread_report import ThreadReport
from gdbext.model.threads.wait import Wait
from gdbext.model.threads.wait_kind import Relation

_TASKS = 3
"""Tasks of an event loop that a sentence names."""
_MAX_TID = 1 << 22
"""PID_MAX_LIMIT (include/linux/threads.h): a larger owner is a pthread_t that Python recorded, which nothing
translates into an id once the thread has ended."""


def place(step: DispatchFrame | None) -> str:
    """`` in aten::mm (Meta, in-kernel)``, or nothing outside the dispatcher."""
    if step is None:
        return ""
    in_kernel = step.stage is DispatchStage.IN_KERNEL
    detail = f"{step.key} kernel" if step.key and in_kernel else step.key or step.stage.value
    return f" in {step.qualified} ({detail})"


def who(thread: ThreadReport) -> str:
    """The thread with the operator it is in."""
    return thread.label + place(thread.innermost)


def who_waits(thread: ThreadReport, wait: Wait) -> str:
    """``MainThread (tid 1) in aten::mm (CPU kernel) waits for the GIL``."""
    return f"{who(thread)} {wait.phrase}"


def owner_clause(wait: Wait, threads: Mapping[int, ThreadReport]) -> str:
    """``, which MainThread (tid 1) holds``; says when that is only inferred, gone or unknown."""
    if wait.handover:
        return ", which is free: it is about to go on"
    if not wait.owners:
        return ""
    gone = [owner for owner in wait.owners if owner.gone]
    if gone:
        tid = gone[0].tid
        if not tid:
            return (
                ", which another thread of the parent process held at the moment of the fork: in this process nobody "
                "can ever release it"
            )
        owner = f"thread {tid}" if tid < _MAX_TID else f"the thread with the ident {tid:#x}"
        return f", which {owner} holds, and that thread does not exist in this process"
    names = listed([_label(owner.tid, threads) for owner in wait.owners])
    relation = wait.kind.traits.relation
    if relation in (Relation.IS, Relation.OWES):
        return "" if relation is Relation.IS else f", still to come from {names}"
    seems = "" if wait.certainty.is_proven else "seems to "
    if relation is Relation.RUNS:
        return f", which {names} {seems}{'run' if seems else 'runs'}"
    return f", which {names} {seems}{'hold' if seems or len(wait.owners) > 1 else 'holds'}"


def _label(tid: int, threads: Mapping[int, ThreadReport]) -> str:
    thread = threads.get(tid)
    return thread.label if thread else f"thread {tid}"


def loop_clause(thread: ThreadReport) -> str:
    """``; its event loop is blocked by the task client, and 3 other tasks wait``; nothing without a loop."""
    loop = thread.loop
    if loop is None or not loop.tasks:
        return ""
    current, others = loop.current, [task for task in loop.tasks if task.state is not TaskState.RUNNING]
    count = f"{len(others)} other task{'s' if len(others) != 1 else ''}"
    if current is not None:
        return f"; the task {current.name} runs in its event loop; until it awaits, {count} cannot run"
    waiting = [task for task in others if task.state is TaskState.WAITING]
    told = listed([f"{task.name} {task.awaits}" for task in waiting], _TASKS)
    ready = f", {len(others) - len(waiting)} of them ready" if len(waiting) < len(others) else ""
    tasks = f"{len(others)} task{'s' if len(others) != 1 else ''}"
    return f"; its event loop has {tasks}{ready}{': ' if told else ''}{told}"


def listed(names: Sequence[str], limit: int = 3) -> str:
    """``a, b and 5 more``."""
    if len(names) <= 1:
        return "".join(names)
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"
