"""States of processes in which no wait is wrong: stopped, slow, busy or idle; and what makes that doubtful."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.diagnosis.kinds.outside import WAITING_EXTERNAL
from gdbext.diagnosis.kinds.verdict_kind import VerdictKind
from gdbext.diagnosis.report.finding import NOTE, Finding, ProcessStop
from gdbext.diagnosis.report.suggestion import Suggestion
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.chains import busy_threads, bystanders, nobody_goes_on
from gdbext.diagnosis.verdict.clauses import all_run, listed, loop_clause, meanwhile, place, wait_chain
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph
from gdbext.torch.stack import DispatchFrame

_BACKGROUND = {"SIGTTIN": "read from", "SIGTTOU": "write to, or set up,"}
"""Signals of job control, and what the process wanted to do with its terminal (termios(3))."""


class Stopped(VerdictKind):
    """A signal or a frozen control group has stopped the process."""

    value = words = "stopped"
    what_to_do = "the report says what lets it go on"

    def find(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        main = seen.main
        if seen.stop and main:
            text = self.sentence(seen.pid, seen.stop)
            yield Finding(self, text, (main.tid,), step=main.innermost, stop=seen.stop)

    def sentence(self, pid: int, stop: ProcessStop) -> str:
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

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        stop = finding.stop
        if stop and stop.group:
            yield (
                f"Thaw the group: echo THAWED > /sys/fs/cgroup/freezer{stop.group}/freezer.state (v1), or "
                f"echo 0 > /sys/fs/cgroup{stop.group}/cgroup.freeze (v2); docker unpause for a container."
            )
        elif stop and stop.tracer:
            number = stop.tracer.partition(" ")[0]
            yield f"Let it go on there. The end of the tracer (kill {number}) does that, too, or ends it, if asked to."
        elif stop and stop.signal in _BACKGROUND:
            yield "Bring it to the foreground (fg), or start it without the terminal: < /dev/null, nohup, setsid."
        yield Suggestion("What it did before", "dispatch-bt")
        yield Suggestion("Whether it hangs as well, once it goes on", "dispatch-diagnose")


class Slow(VerdictKind):
    """It runs slowly, and the reason is proven: a team has too many threads, memory is short, code is compiled again
    and again, numbers are subnormal."""

    value = words = "slow"
    what_to_do = "the explanations are ranked; `--why` says what speaks for and against each"
    is_hang = False
    may_be_slow = goes_on = is_healthy = True
    starves = False
    """The process hardly runs because of the reason, or cannot have what it asks for."""
    how = "runs slowly"

    def find(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """The finding that proven explanations make, the weightiest of them first."""
        slowness = seen.slowness
        found = [each for each in slowness.explanations if each.proven] if slowness else []
        found = [each for each in found if each.starves == self.starves]
        if not slowness or not found or seen.stop:
            return
        running = [thread for thread in seen.threads if thread.state is RunState.RUNNING]
        thread = min(running, key=lambda each: not each.dispatch, default=seen.main)
        around = slowness.machine.found
        yield Finding(
            self,
            self.sentence([each.summary for each in found], thread),
            (thread.tid,) if thread else (),
            (*(text for each in found for text in each.for_), *(around.files if around else ())),
            thread.innermost if thread else None,
            cures=tuple(each.cure for each in found if each.cure),
        )

    def sentence(self, reasons: Sequence[str], thread: ThreadReport | None) -> str:
        """``The process runs slowly: the control group …. MainThread (tid 1) runs train.py:8 (step).``"""
        text = f"The process {self.how}: {'; and '.join(reasons)}."
        if not thread:
            return text
        if thread.state is not RunState.RUNNING or thread.dispatch:
            return f"{text} {thread.label} is{place(thread.innermost)}." if thread.dispatch else text
        return f"{text} {all_run([thread])}."

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        yield from finding.cures


class Starved(Slow):
    """It gets too little CPU time, or is refused what it asks for: its CPU quota is used up, it is pinned to too few
    processors, or memory, pids or descriptors are at their limit."""

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
    may_be_slow = goes_on = is_healthy = True

    def find(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        for thread in busy_threads(seen, graph):
            step = thread.dispatch[0]
            yield Finding(self, self.sentence(thread, step), (thread.tid,), step=step)

    def sentence(self, thread: ThreadReport, step: DispatchFrame) -> str:
        """``MainThread (tid 1) runs in aten::mm (CPU kernel), kernel …, stage in-kernel.``"""
        if step.unread_inside:
            return f"{thread.label} runs{place(step)}."
        kernel = f", kernel {step.kernel.function}" if step.kernel else ""
        verb = "runs" if thread.state is RunState.RUNNING else "waits for threads that run,"
        return f"{thread.label} {verb}{place(step)}{kernel}, stage {step.stage.value}."


class Idle(VerdictKind):
    """Nothing is wrong at this moment."""

    value = words = "idle"
    what_to_do = Busy.what_to_do
    is_hang = False
    may_be_slow = is_healthy = is_quiet = True

    def heading(self, finding: Finding) -> str:
        if not finding.wait:
            return self.words
        if finding.wait.polls or finding.in_loop:
            return WAITING_EXTERNAL.heading(finding)
        return "sleeping" if finding.wait.kind.traits.may_poll else "waits"

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        yield Suggestion("If it should be working, and is the right process: what each thread waits for", "all-threads")


STOPPED = Stopped()
SLOW = Slow()
STARVED = Starved()
BUSY = Busy()
IDLE = Idle()


def at_rest(seen: Observations, graph: WaitGraph, notes: Sequence[Finding]) -> Finding:
    """The verdict where nothing was found: the process is idle, or busy outside of the dispatcher."""
    doubt = notes[0].summary if notes else ""
    running = _running(seen)
    unclear = [thread for thread in seen.threads if thread.dispatch_doubt is not None and not thread.pool]
    if unclear:
        names = listed([thread.label for thread in unclear])
        reason = unclear[0].dispatch_doubt if unclear[0].dispatch_doubt is not None else ""
        text = f"Whether {names} is in the dispatcher cannot be told ({reason})"
        text += f"; and: {doubt}" if doubt else ", and no hang is proven."
        return _healthy(text, unclear, running)
    if seen.main and seen.main.state is RunState.WAITING:
        return _main_waits(seen, seen.main, graph, notes)
    if running:
        text = _runs_elsewhere(running, seen)
        return _healthy(f"{text} {doubt}".rstrip(), running, running)
    if notes:
        text = _outside("no hang is proven", seen.has_torch)
        return Finding(IDLE, f"{text}; but: {doubt}", notes[0].threads)
    text = _outside("no wait is suspicious", seen.has_torch)
    if seen.main and seen.main.wait:  # at a prompt, say
        text = f"{seen.main.label} {seen.main.wait.phrase}; {text[:1].lower()}{text[1:]}"
    return Finding(IDLE, f"{text}.")


def _running(seen: Observations) -> list[ThreadReport]:
    """The threads that run: the holder of a GIL first, for the others wait for it, then those of which a line is
    known."""
    running = [thread for thread in seen.threads if thread.state is RunState.RUNNING]
    with_gil = {each.tid for each in running if any(held.kind is WaitKind.GIL for held in each.holds)}
    return sorted(running, key=lambda each: (each.tid not in with_gil, not each.python_frames, each.tid != seen.pid))


def _main_waits(seen: Observations, main: ThreadReport, graph: WaitGraph, notes: Sequence[Finding]) -> Finding:
    """The main thread's wait is what a user came for, also where it is no finding."""
    chain = graph.wait_chain(main.tid)
    involved = [graph.threads[tid] for tid in chain.tids]
    from_outside = seen.complete and not notes and nobody_goes_on(seen.threads)
    running = _running(seen)
    others = [each for each in running if each not in involved]
    text = wait_chain(chain, graph, with_end=not from_outside)
    if not chain.edges and main.user_line and main.wait and _is_asleep(main.wait):
        text += f", called from {main.user_line}"
    if from_outside:
        text += ", and no thread of this process will end that: only a signal or another process can; no hang is proven"
    if seen.has_torch:
        text += f"{', and' if from_outside else ';'} no thread is in the dispatcher"
    if others:
        text += f". {all_run(others)}"
    doubt = f"but: {notes[0].summary}" if notes else ""
    if notes and notes[0].wait and notes[0].wait is involved[-1].wait and len(notes[0].threads) == 1:
        doubt = f"but {_NOT_RECORDED}"  # the sentence has begun with that very wait
    text = f"{text}. No hang is proven; {doubt}" if doubt else f"{text}."
    doubted = [graph.threads[tid] for note in notes[:1] for tid in note.threads]
    told = {thread.tid: thread for thread in (*involved, *doubted, *others[:1])}
    end = involved[-1].wait
    groups = bystanders(seen, [*told]) if end and not running and not _is_asleep(end) else []
    text += meanwhile(groups, graph.threads)
    told.update((group[0].tid, group[0]) for group in groups)
    return _healthy(text, list(told.values()), running, main.wait if not chain.edges else end)


def _is_asleep(wait: Wait) -> bool:
    """It sleeps, and looks at nothing in between."""
    return wait.kind.traits.may_poll and not wait.polls


def _healthy(
    text: str, threads: Sequence[ThreadReport], running: Sequence[ThreadReport], wait: Wait | None = None
) -> Finding:
    """Nothing hangs: the process is busy where a thread of it runs, wherever it runs."""
    tids = tuple(thread.tid for thread in threads)
    return Finding(BUSY if running else IDLE, text, tids, wait=wait if not running else None)


def _outside(text: str, has_torch: bool) -> str:
    """The sentence about a process of which no thread is in the dispatcher, if it has one."""
    return f"No thread is in the dispatcher, and {text}" if has_torch else f"{text[:1].upper()}{text[1:]}"


def _runs_elsewhere(running: Sequence[ThreadReport], seen: Observations) -> str:
    """Threads run outside of the dispatcher. One moment does not tell whether the only one, with the GIL that others
    wait for, will soon give it away."""
    holder = running[0].tid if len(running) == 1 else None
    want = [each for each, wait in seen.waits if wait.kind is WaitKind.GIL and holder in wait.owner_tids]
    others = f"{len(want)} threads wait" if len(want) > 1 else "".join(f"{each.label} waits" for each in want)
    with_gil = f", with the GIL, for which {others}" if others else ""
    blocks = running[0].loop is not None and running[0].loop.current is not None and len(running[0].loop.tasks) > 1
    loop = loop_clause(running[0]) if blocks else ""
    return f"{all_run(running)}{with_gil}{', outside of the dispatcher' if seen.has_torch else ''}{loop}."


_NOT_RECORDED = "its owner is not recorded in memory: a deadlock through it cannot be excluded."


def doubts(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """Notes on what forbids to say "no deadlock", those about single threads first: locks whose owner nobody records,
    futexes of unknown meaning, a thread that sleeps with the GIL, circles that the timed wait of a thread ends."""
    yield from _unknown_owners(seen)
    yield from _sleeping_holders(seen, graph)
    for cycle in graph.cycles(with_timed=True):
        timed = next((edge for edge in cycle if edge.wait.ends_by_itself), None)
        if timed:
            names = listed([graph.threads[edge.tid].label for edge in cycle])
            breaker = graph.threads[timed.tid].label
            text = f"{names} wait for each other, but the wait of {breaker} is timed and ends by itself."
            yield Finding(NOTE, text, tuple(edge.tid for edge in cycle), cycle=cycle)


def _unknown_owners(seen: Observations) -> Iterator[Finding]:
    """One note for all threads that wait for the same lock at the same place."""
    alike: dict[object, list[tuple[ThreadReport, Wait]]] = {}
    for thread, wait in seen.waits:
        if wait.being_released or thread.state is RunState.IDLE or wait.ends_by_itself:
            continue
        if wait.owners or wait.detail.missing_workers or not wait.kind.traits.may_be_lock:
            continue
        if thread.tid not in seen.moved():  # else what it waited for has come: it runs
            place = (wait.address, thread.stack_key) if wait.address and thread.stack_key else thread.tid
            alike.setdefault(place, []).append((thread, wait))
    for (first, wait), *others in alike.values():
        more = f", as {len(others)} more thread{'s do' if len(others) > 1 else ' does'}" if others else ""
        text = f"{first.label} {wait.phrase}{more}, and {_NOT_RECORDED}"
        yield Finding(NOTE, text, (first.tid, *(each.tid for each, _ in others)), wait=wait)


def _sleeping_holders(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """Threads that sleep, for a time that a core does not tell, with the GIL in hand and others waiting for it."""
    waiters: dict[int, int] = {}
    for tid in (tid for _, wait in seen.waits if wait.kind is WaitKind.GIL for tid in wait.owner_tids):
        waiters[tid] = waiters.get(tid, 0) + 1
    for tid, count in waiters.items():
        holder = graph.threads.get(tid)
        wait = holder.wait if holder else None
        if holder and wait and wait.kind is WaitKind.SLEEP and wait.detail.seconds is None:
            others = "a thread waits" if count == 1 else f"{count} threads wait"
            text = f"{holder.label} {wait.phrase} with the GIL in hand, for which {others}."
            yield Finding(NOTE, text, (tid,), wait=wait)
