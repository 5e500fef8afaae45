"""The sentence of each kind of finding. Pure text; what is worth a finding is decided in rules.py.

Clauses about threads are in jstack's manner.
"""

from __future__ import annotations

from types import MappingProxyType

from gdbext.diagnosis.report.finding import FindingKind
from gdbext.diagnosis.report.thread_report import AsyncTask, RunState, TaskState, ThreadReport
from gdbext.diagnosis.report.wait import ParentsThread, Wait, WaitEdge
from gdbext.diagnosis.report.wait_kind import LostThread, Relation, WaitKind
from gdbext.diagnosis.verdict.recursion import Recursion, repeating
from gdbext.engine.vocabulary import counted, of_many
from gdbext.torch.stack import DispatchFrame, DispatchStage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gdbext.diagnosis.report.finding import ProcessStop
    from gdbext.diagnosis.verdict.crash import Crash
    from gdbext.diagnosis.verdict.graph import Chain, WaitGraph
    from gdbext.engine.targets.base_target import KernelSide

_TASKS = 3
"""Tasks of an event loop that a sentence names."""


def place(step: DispatchFrame | None) -> str:
    """`` in aten::mm (Meta, in-kernel)``, or nothing outside the dispatcher."""
    if step is None:
        return ""
    if step.unread_inside:
        return f" in {step.qualified} or further in (frames without names cannot be read)"
    in_kernel = step.stage is DispatchStage.IN_KERNEL
    detail = f"{step.key_text} kernel" if step.key and in_kernel else step.key_text or step.stage.value
    return f" in {step.qualified} ({detail})"


def who(thread: ThreadReport) -> str:
    """The thread with the operator and the node of a backward pass that it is in."""
    backward = f", in {thread.backward[0].clause}," if thread.backward else ""
    return thread.label + place(thread.innermost) + _depth(thread) + backward


def _depth(thread: ThreadReport) -> str:
    """``, 300 levels deep`` where the dispatcher's steps repeat."""
    _, times = repeating(thread.dispatch)
    return f", {times} levels deep," if times else ""


def who_waits(thread: ThreadReport, wait: Wait) -> str:
    """``MainThread (tid 1) in aten::mm (CPU kernel) waits for the GIL``."""
    return f"{who(thread)} {wait.phrase}"


def owner_clause(wait: Wait, threads: Mapping[int, ThreadReport]) -> str:
    """``, which MainThread (tid 1) holds``; says when that is only inferred, gone or unknown."""
    if wait.being_released:
        return ", which is free: it is about to go on"
    if not wait.owners:
        return ""
    gone = wait.gone_owner
    if gone is not None:
        if isinstance(gone, ParentsThread):
            return (
                ", which another thread of the parent process held at the moment of the fork: in this process nobody "
                "can ever release it"
            )
        gives_up = "; this wait is timed and gives up by itself" if wait.ends_by_itself else ""
        return f", which {gone.phrase} holds, and that thread does not exist in this process{gives_up}"
    names = listed([_label(tid, threads) for tid in wait.owner_tids])
    relation = wait.kind.traits.relation
    if relation in (Relation.IS, Relation.OWES):
        return "" if relation is Relation.IS else f", still to come from {names}"
    seems = "" if wait.certainty.is_proven else "seems to "
    if relation is Relation.RUNS:
        return f", which {names} {seems}{'run' if seems else 'runs'}"
    timed = " (the wait is timed)" if wait.ends_by_itself else ""
    return f", which {names} {seems}{'hold' if seems or len(wait.owners) > 1 else 'holds'}{timed}"


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
        return f"; the task {current.called} runs in its event loop; until it awaits, {count} cannot run"
    waiting = [task for task in others if task.state is TaskState.WAITING]
    told = listed([f"{task.called} {task.awaits}" for task in waiting], _TASKS, "; ")
    ready = f", {len(others) - len(waiting)} of them ready" if len(waiting) < len(others) else ""
    tasks = f"{len(others)} task{'s' if len(others) != 1 else ''}"
    return f"; its event loop has {tasks}{ready}{': ' if told else ''}{told}"


def listed(names: Sequence[str], limit: int = 3, between: str = ", ") -> str:
    """``a, b and 5 more``; ``between``: a semicolon where the names are clauses that may have commas."""
    if len(names) <= 1:
        return "".join(names)
    last = " and " if between == ", " else f"{between}and "
    if len(names) > limit:
        return f"{between.join(names[:limit])}{last}{len(names) - limit} more"
    return f"{between.join(names[:-1])}{last}{names[-1]}"


_PATH_LENGTH = 6
"""Operators of a recursion that its sentence names."""


def crash(thread: ThreadReport, found: Crash, master: ThreadReport | None) -> str:
    """``worker (tid 2) crashed in my::f (CPU kernel), kernel my_kernel: SIGSEGV at 0x0: a null pointer.``

    ``master`` is the thread whose operator a worker outside of the dispatcher works for.
    """
    step = thread.innermost
    kernel = step.kernel.function if step and step.kernel else ""
    inside = f", kernel {kernel}" if kernel else ""
    if step is None and master is not None:
        inside = f" at work for {who(master)}"
    return f"{thread.label} crashed{place(step)}{inside}: {found.sentence}."


def recursion(thread: ThreadReport, found: Recursion, overflow: Crash | None) -> str:
    """``MainThread (tid 1) is in a runaway recursion: my::op with DispatchKeySet(CPU) repeated 900 times.``"""
    names = list(dict.fromkeys(_with_keyset(step) for step in reversed(found.group)))
    path = "".join(names) if len(names) < 2 else " → ".join([*names[:_PATH_LENGTH], "…"])
    end = f"; it ended in {overflow.sentence}" if overflow else ""
    return f"{thread.label} is in a runaway recursion: {path} repeated {found.depth} times{end}."


def _with_keyset(step: DispatchFrame) -> str:
    keyset = f" with DispatchKeySet({', '.join(step.keyset.keys)})" if step.keyset else ""
    return f"{step.qualified}{keyset}"


def deadlock(cycle: Sequence[WaitEdge], graph: WaitGraph) -> str:
    """Each thread of the cycle with what it waits for and who has that."""
    parts = [f"{who(graph.threads[edge.tid])} {_needs(edge, graph)}" for edge in cycle]
    proven = all(edge.wait.certainty.is_proven for edge in cycle)
    doubt = "" if proven else " (an owner is inferred from stacks)"
    return f"{'; '.join(parts)}{doubt}."


def task_deadlock(cycle: Sequence[AsyncTask], thread: ThreadReport) -> str:
    """``The tasks credit and debit of the event loop of MainThread (tid 1) wait for each other: credit waits for …``"""
    names = listed([task.called for task in cycle], _PATH_LENGTH)
    steps = "; ".join(f"{task.called} {task.awaits}" for task in cycle)
    doubt = (
        " (who holds a lock is inferred from the blocks that the tasks are in)"
        if any(task.inferred for task in cycle)
        else ""
    )
    return f"The tasks {names} of the event loop of {thread.label} wait for each other: {steps}{doubt}."


def stuck_loop(thread: ThreadReport, alone: bool) -> str:
    """``The event loop of MainThread (tid 1) waits for nothing that could come: …; its event loop has 2 tasks: …``"""
    nobody = "the process has no other thread" if alone else "no other thread of the process will go on"
    ended = thread.loop.ended if thread.loop is not None else ()
    return (
        f"The event loop of {thread.label} has neither a timer, nor a descriptor or a signal's handler that could wake "
        f"it, and {nobody}: none of its tasks will ever run again{loop_clause(thread)}"
        f"{'; ' if ended else ''}{listed(ended, _TASKS)}."
    )


def unwoken_loop(thread: ThreadReport) -> str:
    """``The event loop of MainThread (tid 1) sleeps, although 1 callback is due: another thread …``"""
    count = (thread.loop.ready if thread.loop is not None else None) or 0
    due = f"{counted(count, 'callback')} {of_many(count, 'is', 'are')}"
    who_did = "another thread, or a signal's handler, has put that there without waking it"
    return f"The event loop of {thread.label} sleeps, although {due} due: {who_did}{loop_clause(thread)}."


def _needs(edge: WaitEdge, graph: WaitGraph) -> str:
    owner, relation = graph.threads[edge.held_by].label, edge.wait.kind.traits.relation
    if relation is Relation.IS:
        return f"{edge.wait.phrase}, which is {owner}"
    if relation is Relation.OWES:
        return f"{edge.wait.phrase}, which needs {owner}"
    return f"{edge.wait.phrase}, which {owner} {_holds(edge.wait)}"


def _holds(wait: Wait) -> str:
    return "holds" if wait.certainty.is_proven else "seems to hold"


def self_deadlock(thread: ThreadReport, wait: Wait) -> str:
    """``… waits for the mutex 0x7f00, which it holds itself.``"""
    reason = f": {wait.self_wait.value}" if wait.self_wait is not None else ""
    if wait.kind is WaitKind.IO:
        return f"{who_waits(thread, wait)}, which only itself could end{reason}{loop_clause(thread)}."
    if wait.kind.traits.relation is Relation.OWES:
        clause = loop_clause(thread)
        return f"{who(thread)} waits for {wait.resource.phrase}, which only itself could end{reason}{clause}."
    return f"{who(thread)} waits for {wait.resource.phrase}, which it {_holds(wait)} itself{reason}."


def orphaned(thread: ThreadReport, wait: Wait, graph: WaitGraph) -> str:
    """``… which thread 77 holds, and that thread does not exist in this process (forked …).``"""
    text = who_waits(thread, wait) + owner_clause(wait, graph.threads)
    if all(isinstance(owner, ParentsThread) for owner in wait.owners):
        return f"{text}."
    return f"{text} (forked while it was held, or its owner ended without unlocking)."


def missing(thread: ThreadReport, wait: Wait) -> str:
    """``… waits for worker threads (OpenMP), but this process has no OpenMP worker threads: …``"""
    reason = wait.missing_workers.sentence if wait.missing_workers is not None else ""
    return f"{who_waits(thread, wait)}, but {reason}."


def lost(thread: ThreadReport, wait: Wait, gone: LostThread, waiters: Sequence[ThreadReport]) -> str:
    """``MainThread (tid 1) waits for the queue 0x7f00 (queue.Queue), but the thread writer has ended, and …``"""
    text = f"{who_waits(thread, wait)}, but {gone.summary}"
    wants = listed([each.label for each in waiters])
    return f"{text}; for this thread {wants} {'wait' if len(waiters) > 1 else 'waits'}." if waiters else f"{text}."


def blocked(chain: Chain, graph: WaitGraph, alike: int = 0, expected: Chain | None = None) -> str:
    """The chain from its first thread to its end; ``alike`` more threads wait in the same way; ``expected``: those from
    its end on that may be the ones to end its wait."""
    parts = [
        who_waits(graph.threads[edge.tid], edge.wait) + owner_clause(edge.wait, graph.threads) for edge in chain.edges
    ]
    end = graph.threads[chain.end]
    if expected is not None and expected.edges:
        return "; ".join([*parts, wait_chain(expected, graph)]) + "."
    clause = (_back(chain, graph) or _at_the_end(end.wait)) if end.wait else ""
    parts.append(f"{who_waits(end, end.wait)}{clause}" if end.wait else end.label)
    if alike:
        parts.append(f"{alike} more {'threads wait' if alike > 1 else 'thread waits'} in the same way")
    return "; ".join(parts) + _wanted_of(chain, graph) + "."


def _wanted_of(chain: Chain, graph: WaitGraph) -> str:
    """``; meanwhile feeder (tid 3) waits for the mutex 0x7f00, which it holds``: what other threads want of those of
    the chain, which may be the reason that nobody comes to end its last wait; "" where the chain says so already."""
    if chain.edges and chain.edges[-1].wait.kind.traits.relation.is_possession:
        return ""
    waiters = graph.waiters()
    pairs = [(graph.threads[tid], owner) for owner in chain.tids[::-1] for tid in waiters.get(owner, ())]
    held = [
        (each, each.wait, owner)
        for each, owner in pairs
        if each.tid not in chain.tids and each.wait and each.wait.kind.traits.relation.is_possession
    ]
    if not held:
        return ""
    others = f" ({len(held) - 1} more wait for such things)" if held[1:] else ""
    first, wait, owner = held[0]
    return f"; meanwhile {first.label} {wait.phrase}, which {graph.threads[owner].label} {_holds(wait)}{others}"


def _at_the_end(wait: Wait) -> str:
    if wait.missing_workers is not None:
        return f", but {wait.missing_workers.sentence}"
    if wait.lost is not None:
        return f", but {wait.lost.summary}"
    if wait.ends_by_itself and wait.repeated_at:
        return f" (timed; the loop at {wait.repeated_at} begins it again)" if wait.kind is not WaitKind.SLEEP else ""
    if wait.ends_by_itself:
        return " (a timed wait: it ends by itself)" if wait.kind is not WaitKind.SLEEP else ""
    if wait.kind.traits.is_lock:
        return ", whose owner is not known"
    return ", and no thread is known that would wake it" if wait.kind.traits.needs_thread else ""


def wait_chain(chain: Chain, graph: WaitGraph, with_end: bool = True) -> str:
    """``with_end``: also what is known of who ends the last wait.

    ``MainThread (tid 1) waits for the queue 0x7f00 (queue.Queue), which loader (tid 2) uses, too; loader …``"""
    parts = []
    for edge in chain.edges:
        text = who_waits(graph.threads[edge.tid], edge.wait)
        if edge.wait.owners:
            text += owner_clause(edge.wait, graph.threads)
        elif not edge.wait.looks_for:
            text += f", which {graph.threads[edge.held_by].label} also uses: it may be the one to end this wait"
        parts.append(text)
    end = graph.threads[chain.end]
    if end.wait is None:
        parts.append(f"{who(end)} runs{f' {end.doing}' if end.doing else ''}")
    else:
        clause = owner_clause(end.wait, graph.threads) or _back(chain, graph) or _at_the_end(end.wait)
        told = with_end and (not end.wait.ends_by_itself or end.wait.repeated_at)
        parts.append(f"{who_waits(end, end.wait)}{clause if told else ''}")
    first = graph.threads[chain.edges[0].tid] if chain.edges else end
    return "; ".join(parts) + _called_at(first) + loop_clause(first)


def _back(chain: Chain, graph: WaitGraph) -> str:
    """The last thread of the chain waits for what may come from one that the chain has come through."""
    wait = graph.threads[chain.end].wait
    if wait is None or wait.ends_by_itself or wait.looks_for or wait.lost is not None:
        return ""
    first = next((tid for tid in wait.expects if tid in chain.tids), None)
    if first is None:
        return ""
    goes_on = any(edge.wait.ends_by_itself for edge in chain.edges)
    may = "it may be the one to end this wait" if goes_on else "they may wait for each other"
    return f", which {graph.threads[first].label} also uses: {may}"


def _called_at(thread: ThreadReport) -> str:
    """``, called at train.py:8 (step)``: the user's line, of a library's loop; ``, which calls …`` of one around it."""
    place = thread.wait.repeated_at if thread.wait is not None else ""
    if not place or not thread.user_line or thread.user_line == place:
        return ""
    places = [frame.place for frame in thread.python_frames]
    is_outer = place in places and places.index(place) > places.index(thread.user_line)
    return f", {'which calls' if is_outer else 'called at'} {thread.user_line}"


_BACKGROUND = {"SIGTTIN": "read from", "SIGTTOU": "write to, or set up,"}
"""Signals of job control, and what the process wanted to do with its terminal (termios(3))."""


def stopped(pid: int, stop: ProcessStop) -> str:
    """A process that a signal, its control group or a tracer has stopped."""
    if stop.tracer:
        return f"The process is stopped by process {stop.tracer}, which traces it: no thread runs until it lets go."
    if stop.group:
        name = f"The control group {stop.group} of the process" if stop.group != "?" else "Its control group"
        return f"{name} is frozen: no thread of process {pid} runs until it is thawed."
    doing = _BACKGROUND.get(stop.signal)
    if doing is not None:
        terminal = f" {stop.terminal}" if stop.terminal else ""
        why = f"it is in the background, and wanted to {doing} its terminal{terminal}"
        return f"The process is stopped by {stop.signal}: {why}."
    by = {"": "by a signal", "SIGTSTP": "by SIGTSTP (Ctrl+Z)"}.get(stop.signal, f"by {stop.signal}")
    return f"The process is stopped {by}, and goes on with: kill -CONT {pid}."


def kernel_wait(thread: ThreadReport, wait: Wait, side: KernelSide, waiters: Sequence[ThreadReport]) -> str:
    """``MainThread (tid 1) waits for a page of memory …: it has slept in the kernel (handle_userfault) for 34 s.``"""
    how = "uninterruptibly " if side.is_uninterruptible else ""
    where = f" ({side.channel})" if side.channel else ""
    since = f" for {span(side.seconds)}" if side.seconds is not None else ""
    text = f"{who_waits(thread, wait)}: it has slept {how}in the kernel{where}{since}"
    if waiters:
        wants = listed([f"{each.label} {each.wait.phrase if each.wait is not None else ''}" for each in waiters])
        text += f"; meanwhile {wants}"
    return f"{text}."


def slowed(kind: FindingKind, reasons: Sequence[str], thread: ThreadReport | None) -> str:
    """``The process runs slowly: the control group …. MainThread (tid 1) runs train.py:8 (step).``"""
    how = "hardly goes on" if kind is FindingKind.STARVED else "runs slowly"
    text = f"The process {how}: {'; and '.join(reasons)}."
    if thread is None:
        return text
    if thread.state is not RunState.RUNNING or thread.dispatch:
        return f"{text} {thread.label} is{place(thread.innermost)}." if thread.dispatch else text
    return f"{text} {all_run([thread])}."


def span(seconds: float) -> str:
    """``34 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def external(thread: ThreadReport, wait: Wait) -> str:
    """``MainThread (tid 1) waits for the other ranks (gloo::…).``"""
    return f"{who_waits(thread, wait)}{loop_clause(thread)}."


def crowd(threads: Sequence[ThreadReport], known: Mapping[int, ThreadReport] = MappingProxyType({})) -> str:
    """``40 threads stand at train.py:5 (handle): worker-0 (tid 2) waits for the Python lock 0x7f00.``; of one thread
    its line."""
    first = threads[0]
    owned = owner_clause(first.wait, known) if first.wait is not None and known else ""
    what = f"{first.wait.phrase}{owned}" if first.wait is not None else "waits"
    if len(threads) == 1:
        return f"{first.label} stands at {first.user_line}: it {what}."
    return f"{len(threads)} threads stand at {first.user_line}: {first.label} {what}."


def meanwhile(groups: Sequence[Sequence[ThreadReport]], known: Mapping[int, ThreadReport]) -> str:
    """`` Meanwhile worker (tid 2) stands at train.py:5 (handle): it waits for …`` for each group; "" for none."""
    return f" Meanwhile {' '.join(crowd(group, known) for group in groups)}" if groups else ""


def gil_in_device_call(thread: ThreadReport, wait: Wait, waiters: Sequence[ThreadReport]) -> str:
    """``… waits for the device (cudaStreamSynchronize …) with the GIL in hand, for which 2 threads wait: …``"""
    others = f"{len(waiters)} threads wait" if len(waiters) > 1 else f"{waiters[0].label} waits"
    callbacks = wait.device.host_functions if wait.device is not None else ()
    called = [each.label for each in waiters if each.tid in callbacks]
    text = f"{who_waits(thread, wait)} with the GIL in hand, for which {others}: no Python code runs until it is over"
    if called:
        text += (
            f"; {listed(called)} runs a host function that the program launched: if the device waits for that, "
            "nobody will ever go on"
        )
    return f"{text}."


def busy(thread: ThreadReport, step: DispatchFrame) -> str:
    """``MainThread (tid 1) runs in aten::mm (CPU kernel), kernel …, stage in-kernel.``"""
    if step.unread_inside:
        return f"{thread.label} runs{place(step)}."
    kernel = f", kernel {step.kernel.function}" if step.kernel else ""
    verb = "runs" if thread.state is RunState.RUNNING else "waits for threads that run,"
    return f"{thread.label} {verb}{place(step)}{kernel}, stage {step.stage.value}."


def all_run(running: Sequence[ThreadReport]) -> str:
    """``MainThread (tid 1) runs train.py:8 (step)``, and the names of further ones."""
    first, *others = running
    labels = listed([thread.label for thread in others])
    too = f"; {labels} run{'' if len(others) > 1 else 's'}, too" if others else ""
    return f"{first.label} runs{f' {first.doing}' if first.doing else ''}{too}"
