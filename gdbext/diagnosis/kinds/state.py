"""States of processes in which no wait is wrong: stopped, slow, busy or idle; and what makes that doubtful."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gdbext.diagnosis.kinds.outside import WAITING_EXTERNAL
from gdbext.diagnosis.kinds.verdict_kind import VerdictKind
from gdbext.diagnosis.report.finding import NOTE, Finding
from gdbext.diagnosis.report.suggestion import Suggestion
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.clauses import (
    explained_chain,
    listed,
    loop_clause,
    meanwhile_clause,
    operator_clause,
    running_clause,
)
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph, busy_threads, bystanders, no_thread_can_wake_others

_BACKGROUND = {"SIGTTIN": "read from", "SIGTTOU": "write to, or set up,"}
"""Signals of job control, and what the process tried to do with its terminal (termios(3))."""


class Stopped(VerdictKind):
    """A signal or a frozen cgroup has stopped the process."""

    value = words = "stopped"
    what_to_do = "the report says how to resume it"

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """One finding if the whole process was stopped before the debugger attached, with who or what did that."""
        main, stop, pid = facts.main, facts.stop, facts.pid
        if not stop or not main:
            return
        doing = _BACKGROUND.get(stop.signal)
        if stop.tracer:
            who = f"by process {stop.tracer}, which traces it"
            text = f"The process is stopped {who}: no thread runs until the tracer resumes it."
        elif stop.group:
            name = f"The cgroup {stop.group} of the process" if stop.group != "?" else "Its cgroup"
            text = f"{name} is frozen: no thread of process {pid} runs until it is thawed."
        elif doing is not None:
            terminal = f" {stop.terminal}" if stop.terminal else ""
            why = f"it is in the background and tried to {doing} its terminal{terminal}"
            text = f"The process is stopped by {stop.signal}: {why}."
        else:
            by = {"": "by a signal", "SIGTSTP": "by SIGTSTP (Ctrl+Z)"}.get(stop.signal, f"by {stop.signal}")
            text = f"The process is stopped {by}; resume it with: kill -CONT {pid}."
        yield Finding(self, text, (main.tid,), step=main.innermost, stop=stop)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        stop = finding.stop
        if stop and stop.group:
            yield (
                f"Thaw the cgroup: echo THAWED > /sys/fs/cgroup/freezer{stop.group}/freezer.state (v1), or "
                f"echo 0 > /sys/fs/cgroup{stop.group}/cgroup.freeze (v2); docker unpause for a container."
            )
        elif stop and stop.tracer:
            number = stop.tracer.partition(" ")[0]
            effect = "also resumes it, or kills it (PTRACE_O_EXITKILL)"
            yield f"Resume it in the tracer. Killing the tracer (kill {number}) {effect}."
        elif stop and stop.signal in _BACKGROUND:
            yield "Bring it to the foreground (fg), or start it without the terminal: < /dev/null, nohup, setsid."
        yield Suggestion("What it was doing", "dispatch-bt")
        yield Suggestion("Whether it also hangs after it resumes", "dispatch-diagnose")


class Slow(VerdictKind):
    """It runs slowly for a proven reason: a team has too many threads, memory is short, code is recompiled repeatedly,
    or numbers are subnormal."""

    value = words = "slow"
    what_to_do = "the explanations are ranked; `--why` shows the evidence for and against each"
    is_hang = False
    may_be_slow = makes_progress = is_healthy = True
    starves = False
    """The process hardly runs because of the reason, or cannot have what it asks for."""
    how = "runs slowly"

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """The finding that proven explanations make, the weightiest of them first."""
        slowness = facts.slowness
        explanations = slowness.explanations if slowness else ()
        reasons = [reason for reason in explanations if reason.proven and reason.starves == self.starves]
        if not slowness or not reasons or facts.stop:
            return
        running = [thread for thread in facts.threads if thread.state is RunState.RUNNING]
        thread = min(running, key=lambda running_thread: not running_thread.dispatch, default=facts.main)
        text = f"The process {self.how}: {'; and '.join(reason.summary for reason in reasons)}."
        if thread and thread.dispatch:
            text += f" {thread.label} is{operator_clause(thread.innermost)}."
        elif thread and thread.state is RunState.RUNNING:
            text += f" {running_clause([thread])}."
        machine = slowness.machine.surroundings
        yield Finding(
            self,
            text,
            (thread.tid,) if thread else (),
            (*(text for reason in reasons for text in reason.for_), *(machine.files if machine else ())),
            thread.innermost if thread else None,
            cures=tuple(reason.cure for reason in reasons if reason.cure),
        )

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        yield from finding.cures


class Starved(Slow):
    """It gets too little CPU time, or its requests fail: its CPU quota is used up, it is pinned to too few CPUs, or
    memory, pids or fds are at their limit."""

    value = "starved"
    words = "starved"
    what_to_do = "the limit, its file and the figures are named"
    is_healthy = False
    starves = True
    how = "makes almost no progress"


class Busy(VerdictKind):
    """Nothing is wrong at this moment."""

    value = "busy"
    words = "runs"
    what_to_do = "`--samples 5 --interval 1` tells a loop from progress"
    is_hang = False
    may_be_slow = makes_progress = is_healthy = True

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """One finding for each thread inside the dispatcher that runs, or that waits for a thread that runs."""
        for thread in busy_threads(facts, graph):
            step = thread.dispatch[0]
            text = f"{thread.label} runs{operator_clause(step)}."
            if not step.unread_inside:
                kernel = f", kernel {step.kernel.function}" if step.kernel else ""
                verb = "runs" if thread.state is RunState.RUNNING else "waits for threads that run,"
                text = f"{thread.label} {verb}{operator_clause(step)}{kernel}, stage {step.stage.value}."
            yield Finding(self, text, (thread.tid,), step=step)


class Idle(VerdictKind):
    """Nothing is wrong at this moment."""

    value = words = "idle"
    what_to_do = Busy.what_to_do
    is_hang = False
    may_be_slow = is_healthy = is_quiet = True

    def heading(self, finding: Finding) -> str:
        """``sleeping``, ``waits`` or ``polls`` by the main thread's wait, else ``idle``."""
        if not finding.wait:
            return self.words
        if finding.wait.polls or finding.in_loop:
            return WAITING_EXTERNAL.heading(finding)
        return "sleeping" if finding.wait.kind.traits.may_poll else "waits"

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        yield Suggestion(
            "If this is the right process and it should be working, see what each thread waits for", "all-threads"
        )


STOPPED = Stopped()
SLOW = Slow()
STARVED = Starved()
BUSY = Busy()
IDLE = Idle()


def healthy_verdict(facts: Observations, graph: WaitGraph, notes: Sequence[Finding]) -> Finding:
    """The verdict on a process without a finding: idle, or busy outside the dispatcher. ``notes``: see doubts()."""
    doubt = notes[0].summary if notes else ""
    # The holder of a GIL first, because the others wait for it, then threads with a known line.
    running = [thread for thread in facts.threads if thread.state is RunState.RUNNING]
    with_gil = {thread.tid for thread in running if any(held.kind is WaitKind.GIL for held in thread.holds)}
    running.sort(key=lambda thread: (thread.tid not in with_gil, not thread.python_frames, thread.tid != facts.pid))

    def idle_or_busy(text: str, threads: Sequence[ThreadReport], wait: Wait | None = None) -> Finding:
        tids = tuple(thread.tid for thread in threads)
        return Finding(BUSY if running else IDLE, text, tids, wait=wait if not running else None)

    unclear = [thread for thread in facts.threads if thread.dispatch_doubt is not None and not thread.pool]
    if unclear:
        names = listed([thread.label for thread in unclear])
        text = f"It is unknown whether {names} is in the dispatcher ({unclear[0].dispatch_doubt or ''})"
        text += f"; and: {doubt}" if doubt else ", and no hang is proven."
        return idle_or_busy(text, unclear)
    if facts.main and facts.main.state is RunState.WAITING:
        text, involved, wait = _describe_main_wait(facts, facts.main, graph, notes, running)
        return idle_or_busy(text, involved, wait)
    if running:
        # One moment does not show whether the only thread that runs, with the GIL, will soon release it.
        first, text = running[0], running_clause(running)
        holder = first.tid if len(running) == 1 else None
        want = [thread for thread, wait in facts.waits if wait.kind is WaitKind.GIL and holder in wait.owner_tids]
        if want:
            wants = f"{len(want)} threads want" if len(want) > 1 else f"{want[0].label} wants"
            text += f", holding the GIL, which {wants}"
        blocks = first.loop is not None and first.loop.current is not None and len(first.loop.tasks) > 1
        text += f"{', outside of the dispatcher' if facts.has_torch else ''}{loop_clause(first) if blocks else ''}."
        return idle_or_busy(f"{text} {doubt}".rstrip(), running)
    text = "no hang is proven" if notes else "no wait is suspicious"
    text = f"No thread is in the dispatcher, and {text}" if facts.has_torch else f"{text[:1].upper()}{text[1:]}"
    if notes:
        return Finding(IDLE, f"{text}; but: {doubt}", notes[0].threads)
    if facts.main and facts.main.wait:  # at a prompt, say
        text = f"{facts.main.label} {facts.main.wait.phrase}; {text[:1].lower()}{text[1:]}"
    return Finding(IDLE, f"{text}.")


def _describe_main_wait(
    facts: Observations, main: ThreadReport, graph: WaitGraph, notes: Sequence[Finding], running: Sequence[ThreadReport]
) -> tuple[str, Sequence[ThreadReport], Wait | None]:
    """(sentence on the main thread's wait, about which users ask; threads in it; its wait). ``running``: threads."""

    def is_asleep(wait: Wait) -> bool:
        return wait.kind.traits.may_poll and not wait.polls

    chain = graph.explained_chain(main.tid)
    involved = [graph.threads[tid] for tid in chain.tids]
    from_outside = facts.complete and not notes and no_thread_can_wake_others(facts.threads)
    others = [thread for thread in running if thread not in involved]
    shows_end = not from_outside and chain.end not in facts.moved()
    text = explained_chain(chain, graph, with_end=shows_end)
    if not chain.edges and main.user_line and main.wait and is_asleep(main.wait):
        text += f", called from {main.user_line}"
    if from_outside:
        could = "can end" if facts.lives else "could have ended"
        text += f": only a signal or another process {could} this wait; it may be intentional, and no hang is proven"
    if facts.has_torch:
        text += f"{', and' if from_outside else ';'} no thread is in the dispatcher"
    if others:
        text += f". {running_clause(others)}"
    if notes:
        doubt = f": {notes[0].summary}"
        if notes[0].wait and notes[0].wait is involved[-1].wait and len(notes[0].threads) == 1:
            doubt = f" {_NOT_RECORDED}"  # the sentence has begun with that very wait
        text += f". No hang is proven; but{doubt}"
    else:
        text += "."
    doubted = [graph.threads[tid] for note in notes[:1] for tid in note.threads]
    named = {thread.tid: thread for thread in (*involved, *doubted, *others[:1])}
    end = involved[-1].wait
    groups = bystanders(facts, [*named]) if end and not running and not is_asleep(end) else []
    named.update((group[0].tid, group[0]) for group in groups)
    wait = end if chain.edges else main.wait
    return f"{text}{meanwhile_clause(groups, graph.threads)}", list(named.values()), wait


_NOT_RECORDED = "its owner is not recorded in memory, so a deadlock cannot be ruled out."


def doubts(facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """Notes on what forbids the statement "no deadlock": locks without a recorded owner, futexes of unknown meaning, a
    thread that sleeps with the GIL, cycles that a timed wait ends."""
    groups: dict[object, list[tuple[ThreadReport, Wait]]] = {}  # threads that wait for one lock with equal stacks
    for thread, wait in facts.waits:
        if wait.being_released or thread.state is RunState.IDLE or wait.ends_by_itself:
            continue
        if wait.owners or wait.detail.missing_workers or not wait.kind.traits.may_be_lock:
            continue
        if thread.tid not in facts.moved():  # else it has got what it waited for: it runs
            key = (wait.address, thread.stack_key) if wait.address and thread.stack_key else thread.tid
            groups.setdefault(key, []).append((thread, wait))
    for (first, wait), *others in groups.values():
        more = f", as {len(others)} more thread{'s do' if len(others) > 1 else ' does'}" if others else ""
        text = f"{first.label} {wait.phrase}{more}, and {_NOT_RECORDED}"
        yield Finding(NOTE, text, (first.tid, *(thread.tid for thread, _ in others)), wait=wait)
    waiters = Counter(tid for _, wait in facts.waits if wait.kind is WaitKind.GIL for tid in wait.owner_tids)
    for tid, count in waiters.items():
        holder = graph.threads.get(tid)
        sleep = holder.wait if holder else None
        # The seconds of a sleep are unknown in a core.
        if holder and sleep and sleep.kind is WaitKind.SLEEP and sleep.detail.seconds is None:
            wants = "another thread wants" if count == 1 else f"{count} threads want"
            text = f"{holder.label} {sleep.phrase} while holding the GIL, which {wants}."
            yield Finding(NOTE, text, (tid,), wait=sleep)
    for cycle in graph.cycles(with_timed=True):
        timed = next((edge for edge in cycle if edge.wait.ends_by_itself), None)
        if timed:
            names = listed([graph.threads[edge.tid].label for edge in cycle])
            breaker = graph.threads[timed.tid].label
            text = f"{names} wait for each other, but the wait of {breaker} is timed and ends by itself."
            yield Finding(NOTE, text, tuple(edge.tid for edge in cycle), cycle=cycle)
