"""Leads from observations to findings, and from findings to the one verdict; compares the process with known bugs.

Notes on what forbids to say "no deadlock": locks whose owner nobody records, futexes of unknown meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.thread_report import Finding, FindingKind, Frame, RunState, ThreadReport, Verdict
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict import rules, sentences
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph
from gdbext.diagnosis.verdict.rules import RULES
from gdbext.diagnosis.waits.snapshot import fork_evidence
from gdbext.engine.record import Record
from gdbext.engine.targets.system.linux import HIDDEN
from gdbext.known.catalogue import catalogue
from gdbext.known.signatures import KnownMatch, ProcessFacts, ThreadFacts, child_relation, matches

if TYPE_CHECKING:
    from collections.abc import Collection

    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.known.package_versions import PackageVersions
    from gdbext.known.signatures import NativeName


def caveats(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """The notes, those about single threads first."""
    return chain(_unknown_owners(seen), _sleeping_holders(seen, graph), _timed_cycles(graph))


def _unknown_owners(seen: Observations) -> Iterator[Finding]:
    """One note for all threads that wait for the same lock at the same place."""
    alike: dict[object, list[ThreadReport]] = {}
    for thread in _without_owner(seen):
        address = thread.wait.address if thread.wait is not None else 0
        alike.setdefault((address, thread.stack_key) if address and thread.stack_key else thread.tid, []).append(thread)
    for first, *others in alike.values():
        if first.wait is not None:
            text = sentences.owner_unknown(first, first.wait, len(others))
            yield Finding(FindingKind.NOTE, text, (first.tid, *(each.tid for each in others)), wait=first.wait)


def _without_owner(seen: Observations) -> Iterator[ThreadReport]:
    for thread in seen.threads:
        wait = thread.wait
        if wait is None or wait.being_released or thread.state is RunState.IDLE or wait.ends_by_itself:
            continue
        if wait.owners or wait.missing_workers is not None or not wait.kind.traits.may_be_lock:
            continue
        if thread.tid in seen.moved():
            continue  # whatever it waited for has come: it runs
        yield thread


def _sleeping_holders(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """Threads that sleep, for a time that a core does not tell, with the GIL in hand and others waiting for it."""
    waiters: dict[int, int] = {}
    for thread in seen.threads:
        if thread.wait is not None and thread.wait.kind is WaitKind.GIL and thread.wait.owner is not None:
            waiters[thread.wait.owner.tid] = waiters.get(thread.wait.owner.tid, 0) + 1
    for tid, count in waiters.items():
        holder = graph.threads.get(tid)
        wait = holder.wait if holder is not None else None
        if holder is not None and wait is not None and wait.kind is WaitKind.SLEEP and wait.seconds is None:
            yield Finding(FindingKind.NOTE, sentences.sleeps_with_gil(holder, wait, count), (tid,), wait=wait)


def _timed_cycles(graph: WaitGraph) -> Iterator[Finding]:
    for cycle in graph.cycles(with_timed=True):
        timed = next((edge for edge in cycle if edge.wait.ends_by_itself), None)
        if timed is not None:
            threads = [graph.threads[edge.tid] for edge in cycle]
            text = sentences.timed_cycle(threads, graph.threads[timed.tid])
            yield Finding(FindingKind.NOTE, text, tuple(edge.tid for edge in cycle), cycle=cycle)


class Judgement(Record):
    """All findings, strongest first, and the verdict."""

    findings: tuple[Finding, ...]
    verdict: Verdict


def judge(seen: Observations) -> Judgement:
    """The findings and the verdict on a process that stands still."""
    graph = WaitGraph(seen.threads)
    found = [finding for rule in RULES for finding in rule(seen, graph) if not _is_refuted(finding, seen, graph)]
    found.sort(key=lambda finding: finding.kind.rank)
    notes = list(caveats(seen, graph))
    findings = _numbered([finding for finding in found if finding.kind is not FindingKind.BUSY] + notes)
    return Judgement(findings, Verdict(_strongest(seen, graph, found, findings, notes)))


def _is_refuted(finding: Finding, seen: Observations, graph: WaitGraph) -> bool:
    """A thread that is said to wait for ever, or the one that it is said to wait for in vain, has run since. A timed
    wait that begins again says nothing."""
    traits = finding.kind.traits
    if not (traits.is_defect and traits.movement_refutes_it):
        return False
    gone = [owner.tid for owner in finding.wait.owners if owner.gone] if finding.wait is not None else []
    waits = {tid: graph.threads[tid].wait for tid in finding.threads if tid in graph.threads}
    return any(seen.has_run(tid) for tid in (*(t for t, wait in waits.items() if wait and not wait.timed), *gone))


def _numbered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings of one report with their ids."""
    return tuple(each._replace(id=f"{each.kind.value}-{number}") for number, each in enumerate(findings, 1))


def _strongest(
    seen: Observations,
    graph: WaitGraph,
    found: Sequence[Finding],
    listed: Sequence[Finding],
    notes: Sequence[Finding],
) -> Finding:
    doubt = notes[0].summary if notes else ""
    if not found:
        return _idle(seen, graph, notes)
    if found[0].kind is FindingKind.BUSY:
        return found[0]._replace(summary=f"{found[0].summary} {doubt}".rstrip())
    return listed[0]


def _idle(seen: Observations, graph: WaitGraph, notes: Sequence[Finding]) -> Finding:
    doubt = notes[0].summary if notes else ""
    running = _running(seen)
    unclear = [thread for thread in seen.threads if thread.unseen_dispatch is not None and thread.pool is None]
    if unclear:
        return _healthy(sentences.unseen_dispatch(unclear, doubt), unclear, running)
    if seen.main is not None and seen.main.state is RunState.WAITING:
        return _main_waits(seen, seen.main, graph, notes)
    if running:
        text = sentences.runs_elsewhere(running, _want_gil_of(running, seen), seen.has_torch)
        return _healthy(f"{text} {doubt}".rstrip(), running, running)
    if notes:
        text = sentences.outside("no hang is proven", seen.has_torch)
        return Finding(FindingKind.IDLE, f"{text}; but: {doubt}", notes[0].threads)
    return Finding(FindingKind.IDLE, sentences.idle(seen.main, seen.has_torch))


def _running(seen: Observations) -> list[ThreadReport]:
    """The threads that run: the holder of a GIL first, for the others wait for it, then those of which a line is
    known."""
    running = [thread for thread in seen.threads if thread.state is RunState.RUNNING]
    return sorted(running, key=lambda each: (not _has_gil(each), not each.python, each.tid != seen.pid))


def _has_gil(thread: ThreadReport) -> bool:
    return any(resource.kind is WaitKind.GIL for resource in thread.holds)


def _main_waits(seen: Observations, main: ThreadReport, graph: WaitGraph, notes: Sequence[Finding]) -> Finding:
    """The main thread's wait is what a user came for, also where it is no finding."""
    wait_chain = graph.wait_chain(main.tid)
    involved = [graph.threads[tid] for tid in wait_chain.tids]
    from_outside = seen.complete and not notes and rules.nobody_goes_on(seen.threads)
    running = _running(seen)
    others = [each for each in running if each not in involved]
    text = sentences.wait_chain(wait_chain, graph, with_end=not from_outside)
    text = sentences.main_waits(text, from_outside, others, notes[0].summary if notes else "", seen.has_torch)
    doubted = [graph.threads[tid] for note in notes[:1] for tid in note.threads]
    told = {thread.tid: thread for thread in (*involved, *doubted, *others[:1])}
    return _healthy(text, list(told.values()), running)


def _healthy(text: str, threads: Sequence[ThreadReport], running: Sequence[ThreadReport]) -> Finding:
    """Nothing hangs: the process is busy where a thread of it runs, wherever it runs."""
    kind = FindingKind.BUSY if running else FindingKind.IDLE
    return Finding(kind, text, tuple(thread.tid for thread in threads))


def _want_gil_of(running: Sequence[ThreadReport], seen: Observations) -> list[ThreadReport]:
    """The threads that wait for the GIL that the only thread that runs has."""
    holder = running[0].tid if len(running) == 1 else None
    return [
        thread for thread in seen.threads
        if thread.wait is not None and thread.wait.kind is WaitKind.GIL
        and any(owner.tid == holder for owner in thread.wait.owners)
    ]  # fmt: skip


_INNER = 200
"""Native frames of a thread that may be named, where an entry asks for some."""


def known_bugs(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport], findings: Sequence[Finding]
) -> tuple[KnownMatch, ...]:
    """The bugs because of which the process may hang. What of other packages cannot be used is noted as an error."""
    crashed = {tid for finding in findings if finding.kind is FindingKind.CRASH for tid in finding.threads}
    facts = [_facts(process, process.thread(thread.tid), thread, crashed) for thread in threads]
    bugs = catalogue(lambda error: session.errors.note(error, "known bugs"))
    return tuple(matches(bugs, _process_facts(session, process, facts)))


def _process_facts(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadFacts]) -> ProcessFacts:
    return ProcessFacts(
        threads,
        _Versions(session, threads).version,
        partial(_variable, session),
        partial(_relation, session, process),
        session.target.architecture.name,
        [module.name for module in session.modules.modules],
    )


class _Versions:
    """Versions of packages, read when an entry whose stacks fit asks for one."""

    def __init__(self, session: Session, threads: Sequence[ThreadFacts]) -> None:
        self._session = session
        self._threads = threads
        self._packages: PackageVersions | None = None

    def version(self, package: str) -> str | None:
        """The version of a package; None where it cannot be known."""
        session = self._session
        if package == "python":
            return session.python.version if session.python is not None else None
        if self._packages is None:
            from gdbext.known.package_versions import PackageVersions
            from gdbext.torch.layout_choice import torch_version

            paths = {file for thread in self._threads for file, _ in thread.python}
            known = {"torch": torch_version(session.modules) or None if session.has_torch else None}
            self._packages = PackageVersions(session.modules, session.target.files, paths, known)
        return self._packages.version(package)


def _variable(session: Session, name: str) -> tuple[bool, str] | None:
    """The variable as the process was started with it; a recording has not all, and hides the values of some."""
    environ = session.target.environ()
    if not environ or (name not in environ and session.target.recorded is not None) or environ.get(name) == HIDDEN:
        return None
    return name in environ, environ.get(name, "")


def _relation(session: Session, process: ProcessSnapshot, word: str) -> bool | None:
    if word == "one-thread":
        return len(process.tids) == 1
    if word == "forked":
        return True if fork_evidence(process) else None
    if session.procfs is None:
        return None
    children = list(session.procfs.children().values())
    family = [*children, *(each for theirs in session.procfs.grandchildren().values() for each in theirs)]
    return child_relation(word, [each.command or each.name for each in family])


def _facts(
    process: ProcessSnapshot, snapshot: ThreadSnapshot | None, thread: ThreadReport, crashed: Collection[int]
) -> ThreadFacts:
    wait = thread.wait
    missing = wait.missing_workers if wait is not None else None
    owner = wait.owner if wait is not None else None
    return ThreadFacts(
        thread.label,
        _lines(thread.python),
        wait.kind.value if wait is not None else "",
        missing.pool.name if missing is not None and missing.forked else "",
        partial(_native, snapshot) if snapshot is not None else tuple,
        tid=thread.tid,
        roles=["main" if thread.tid == process.pid else "other", *(["crashed"] if thread.tid in crashed else [])],
        names=list(filter(None, (thread.python_name, thread.name))),
        state=thread.state.value,
        holds=[held.kind.value for held in thread.holds],
        owner=owner.tid if owner is not None and not owner.gone else None,
        owner_gone=owner is not None and owner.gone,
        group=wait.collective.group if wait is not None and wait.collective is not None else "",
        lost_signal=wait is not None and wait.lost_signal,
        tasks=[_lines(task.frames) for task in thread.loop.tasks] if thread.loop is not None else (),
    )


def _lines(frames: Sequence[Frame]) -> list[tuple[str, str]]:
    return [(frame.file, frame.function) for frame in frames]


def _native(thread: ThreadSnapshot) -> list[tuple[NativeName, str]]:
    levels = range(min(len(thread.frames), _INNER))
    return [(partial(_names, thread, level), thread.module_name(level)) for level in levels]


def _names(thread: ThreadSnapshot, level: int) -> tuple[str, ...]:
    function = thread.stack.function(level)
    return function.demangled if function is not None else ()
