"""Clauses about threads, in jstack's manner, from which several kinds of findings build their sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gdbext.diagnosis.report.thread_report import AsyncTask, TaskState, ThreadReport
from gdbext.diagnosis.report.wait import ParentsThread, Wait
from gdbext.diagnosis.report.wait_kind import Relation, WaitKind
from gdbext.diagnosis.verdict.graph import Chain, WaitGraph
from gdbext.diagnosis.verdict.recursion import longest_repetition
from gdbext.torch.stack import DispatchFrame, DispatchStage

TASKS = 3
"""Tasks of an event loop that a sentence names."""
_TASK_GROUPS = 5
"""Groups of equal tasks that a sentence names."""
PATH_LENGTH = 6
"""Operators, or tasks, of a cycle that a sentence names."""


def operator_clause(step: DispatchFrame | None) -> str:
    """`` in aten::mm (Meta, in-kernel)``; "" outside the dispatcher."""
    if not step:
        return ""
    if step.unread_inside:
        return f" in {step.qualified} or deeper (frames without names cannot be read)"
    in_kernel = step.stage is DispatchStage.IN_KERNEL
    detail = f"{step.key_text} kernel" if step.key and in_kernel else step.key_text or step.stage.value
    return f" in {step.qualified} ({detail})"


def thread_clause(thread: ThreadReport) -> str:
    """``MainThread (tid 1) in aten::mm (CPU kernel)``: the thread, its operator and its node of a backward pass."""
    _, times = longest_repetition(thread.dispatch)
    depth = f", {times} levels deep," if times else ""
    backward = f", in {thread.backward[0].clause}," if thread.backward else ""
    return thread.label + operator_clause(thread.innermost) + depth + backward


def waiting_clause(thread: ThreadReport, wait: Wait) -> str:
    """``MainThread (tid 1) in aten::mm (CPU kernel) waits for the GIL``."""
    return f"{thread_clause(thread)} {wait.phrase}"


def owner_clause(wait: Wait, threads: Mapping[int, ThreadReport]) -> str:
    """``, which MainThread (tid 1) holds``, with what makes that doubtful; "" if unknown. ``threads``: by tid."""
    if wait.being_released:
        return ", which is free: it is about to continue"
    gone = wait.gone_owner
    if isinstance(gone, ParentsThread):
        where = "another thread of the parent process when it forked"
        return f", held by {where}, so it can never be released in this process"
    if gone:
        gives_up = "; this wait is timed and ends by itself" if wait.ends_by_itself else ""
        return f", held by {gone.phrase}, which does not exist in this process{gives_up}"
    relation = wait.kind.traits.relation
    if not wait.owners or relation is Relation.IS:
        return ""
    names = listed([threads[tid].label if tid in threads else f"thread {tid}" for tid in wait.owner_tids])
    if relation is Relation.OWES:
        return f", and {names} should wake it"
    timed = " (the wait is timed)" if wait.ends_by_itself else ""
    return f", which {names} {holds_verb(wait.kind, wait.certainty.is_proven, len(wait.owners))}{timed}"


def loop_clause(thread: ThreadReport) -> str:
    """``; its event loop has 3 tasks: …``, or which task blocks the loop; "" if the thread runs no loop with tasks."""
    loop = thread.loop
    if not loop or not loop.tasks:
        return ""
    current, others = loop.current, [task for task in loop.tasks if task.state is not TaskState.RUNNING]
    plural = "s" if len(others) != 1 else ""
    if current:
        count = f"{len(others)} other task{plural}"
        return f"; the task {current.called} runs in its event loop; until it awaits, {count} cannot run"
    groups = [group for group in loop.groups if group[0].state is TaskState.WAITING]
    rest = sum(map(len, groups[_TASK_GROUPS:]))
    texts = [*map(tasks_clause, groups[:_TASK_GROUPS]), *([f"{rest} more"] if rest else ())]
    ready = len(others) - sum(map(len, groups))
    text = f"; its event loop has {len(others)} task{plural}{f', {ready} of them ready' if ready else ''}"
    text += f"{': ' if texts else ''}{listed(texts, len(texts), '; ')}"
    # What a failed task should have delivered is no fact, but a wait for code of this process may be one for it.
    awaits_own = any(task.only_from_here and not task.timed for group in groups for task in group)
    return text + (f"; {listed(loop.ended, TASKS, '; ')}" if loop.ended and awaits_own else "")


def tasks_clause(group: Sequence[AsyncTask]) -> str:
    """``reader waits for the queue 0x7f00 (asyncio.Queue)``; ``20 × fetch (app.py:7), each waits for …`` for a group of
    ``EventLoop.groups``; if its members wait for different objects of one kind, what the first one waits for."""
    first = group[0]
    what = first.awaits or f"is {first.state.value}"
    if len(group) == 1:
        return f"{first.called} {what}"
    if all(task.awaits == first.awaits for task in group):
        return f"{len(group)} × {first.place}: each {what}"
    return f"{len(group)} × {first.place}: {first.name} {what}, the others in the same way"


def listed(names: Sequence[str], limit: int = 3, between: str = ", ") -> str:
    """``a, b and 5 more``; ``between``: a semicolon if the names are clauses that may have commas."""
    if len(names) <= 1:
        return "".join(names)
    last = " and " if between == ", " else f"{between}and "
    if len(names) > limit:
        return f"{between.join(names[:limit])}{last}{len(names) - limit} more"
    return f"{between.join(names[:-1])}{last}{names[-1]}"


def holds_verb(kind: WaitKind, is_proven: bool, owners: int = 1) -> str:
    """The verb between the owners of a resource and the resource: ``holds``, ``seems to run`` an initializer.
    ``is_proven``: the owner is recorded; ``owners``: their number."""
    verb = "run" if kind.traits.relation is Relation.RUNS else "hold"
    if is_proven:
        return verb if owners > 1 else f"{verb}s"
    return f"seem{'' if owners > 1 else 's'} to {verb}"


def relation_clause(wait: Wait, owner: str) -> str:
    """``which MainThread (tid 1) holds``, ``which depends on loader (tid 2)``: the owner's relation to the resource."""
    relation = wait.kind.traits.relation
    if relation is Relation.IS:
        return f"which is {owner}"
    if relation is Relation.OWES:
        return f"which depends on {owner}"
    return f"which {owner} {holds_verb(wait.kind, wait.certainty.is_proven)}"


def end_clause(wait: Wait) -> str:
    """A clause on what is known of the end of a chain's last wait; "" if that is nothing."""
    if wait.detail.absence:
        return wait.detail.absence
    if wait.ends_by_itself:
        return wait.detail.timed_clause if wait.kind is not WaitKind.SLEEP else ""
    if wait.kind.traits.is_lock:
        return ", whose owner is not known"
    is_unexplained = wait.kind.traits.needs_thread and not wait.was_ended
    return ", and no thread was found that could wake it" if is_unexplained else ""


def explained_chain(chain: Chain, graph: WaitGraph, with_end: bool = True) -> str:
    """``MainThread (tid 1) waits for the queue 0x7f00 (queue.Queue), which loader (tid 2) also uses; loader …``,
    without a full stop; ``with_end``: also what is known of the end of the last wait."""
    parts = []
    for edge in chain.edges:
        text = waiting_clause(graph.threads[edge.tid], edge.wait)
        if edge.wait.owners:
            text += owner_clause(edge.wait, graph.threads)
        elif not edge.wait.detail.looks_for:
            text += f", which {graph.threads[edge.held_by].label} also uses and may wake it"
        parts.append(text)
    end = graph.threads[chain.end]
    if not end.wait:
        parts.append(f"{thread_clause(end)} runs{f' {end.doing}' if end.doing else ''}")
    else:
        clause = owner_clause(end.wait, graph.threads) or back_clause(chain, graph) or end_clause(end.wait)
        shows_end = with_end and (not end.wait.ends_by_itself or end.wait.detail.repeated_at)
        parts.append(f"{waiting_clause(end, end.wait)}{clause if shows_end else ''}")
    first = graph.threads[chain.edges[0].tid] if chain.edges else end
    loop_line, user_line, called = first.wait.detail.repeated_at if first.wait else "", first.user_line, ""
    if loop_line and user_line and user_line != loop_line:
        # The loop is a library's, called by the user's line, or is around that line.
        places = [frame.place for frame in first.python_frames]
        is_outer = loop_line in places and places.index(loop_line) > places.index(user_line)
        called = f", {'which calls' if is_outer else 'called at'} {user_line}"
    return "; ".join(parts) + called + loop_clause(first)


def back_clause(chain: Chain, graph: WaitGraph) -> str:
    """``, which MainThread (tid 1) also uses: possibly a deadlock``, if the chain's last wait leads back into it."""
    wait = graph.threads[chain.end].wait
    if not wait or wait.ends_by_itself or wait.detail.looks_for or wait.detail.lost:
        return ""
    first = next((tid for tid in wait.detail.expects if tid in chain.tids), None)
    if first is None:
        return ""
    resumes = any(edge.wait.ends_by_itself for edge in chain.edges)
    may = "it may end this wait" if resumes else "possibly a deadlock"
    return f", which {graph.threads[first].label} also uses: {may}"


def group_sentence(
    threads: Sequence[ThreadReport], threads_by_tid: Mapping[int, ThreadReport] = MappingProxyType({})
) -> str:
    """``40 threads are at train.py:5 (handle): worker-0 (tid 2) waits for the Python lock 0x7f00.``; of one thread
    its line. ``threads_by_tid``: to name the owner."""
    first = threads[0]
    owner = owner_clause(first.wait, threads_by_tid) if first.wait and threads_by_tid else ""
    what = f"{first.wait.phrase}{owner}" if first.wait else "waits"
    if len(threads) == 1:
        return f"{first.label} is at {first.user_line}: it {what}."
    return f"{len(threads)} threads are at {first.user_line}: {first.label} {what}."


def meanwhile_clause(groups: Sequence[Sequence[ThreadReport]], threads_by_tid: Mapping[int, ThreadReport]) -> str:
    """`` Meanwhile worker (tid 2) is at train.py:5 (handle): it waits for …`` for each group; "" for none."""
    return f" Meanwhile {' '.join(group_sentence(group, threads_by_tid) for group in groups)}" if groups else ""


def running_clause(running: Sequence[ThreadReport]) -> str:
    """``MainThread (tid 1) runs train.py:8 (step)``, and the names of further ones."""
    first, *others = running
    labels = listed([thread.label for thread in others])
    too = f"; {labels} run{'' if len(others) > 1 else 's'}, too" if others else ""
    return f"{first.label} runs{f' {first.doing}' if first.doing else ''}{too}"
