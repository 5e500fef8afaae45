"""From facts to findings, and from findings to the one verdict (contract, section 4). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gdbext.model.dispatch_frame import DispatchFrame
from gdbext.model.finding import Finding
from gdbext.model.finding_kind import FindingKind
from gdbext.model.thread import RunState, ThreadReport
from gdbext.model.verdict import Verdict
from gdbext.model.wait_kind import Relation, WaitKind
from gdbext.verdict import blocked, phrasing
from gdbext.verdict.crash import Crash, CrashKind
from gdbext.verdict.graph import Chain, Edge, WaitGraph
from gdbext.verdict.recursion import Recursion


@dataclass(frozen=True)
class Observations:
    """Everything that a verdict is made from."""

    threads: Sequence[ThreadReport]
    pid: int
    crashes: Mapping[int, Crash] = field(default_factory=dict)
    recursions: Mapping[int, Recursion] = field(default_factory=dict)
    masters: Mapping[int, int] = field(default_factory=dict)
    """Crashed worker of an OpenMP team → the only thread inside an operator that has a team."""
    complete: bool = True
    """No thread is missing because it could not be read."""
    stopped: bool = False
    """All threads were stopped already, by a signal (SIGSTOP, Ctrl+Z), before anybody looked."""


@dataclass(frozen=True)
class Judgement:
    """All findings, strongest first, and the verdict."""

    findings: tuple[Finding, ...]
    verdict: Verdict


def judge(case: Observations) -> Judgement:
    """The findings and the verdict on a process that stands still."""
    graph = WaitGraph(case.threads)
    found: list[Finding] = []
    rules: tuple[Callable[[Observations, WaitGraph], Iterator[Finding]], ...] = (
        _crashes, _recursions, _deadlocks, _self_deadlocks, _orphans, _missing, _blocked, _external, _busy,
    )  # fmt: skip
    for rule in rules:
        found.extend(rule(case, graph))
    found.sort(key=lambda finding: finding.kind.rank)
    notes = [Finding(FindingKind.NOTE, text, tids) for text, tids in blocked.uncertainties(case.threads, graph)]
    listed = numbered([finding for finding in found if finding.kind is not FindingKind.BUSY] + notes)
    if not found:
        return Judgement(listed, Verdict(_idle(case, notes)))
    strongest = found[0]
    if strongest.kind is not FindingKind.BUSY:
        return Judgement(listed, Verdict(listed[0]))
    doubt = f" {notes[0].summary}" if notes else ""
    return Judgement(listed, Verdict(replace(strongest, summary=strongest.summary + doubt)))


def numbered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings of one report with their ids."""
    return tuple(replace(each, id=f"{each.kind.value}-{number}") for number, each in enumerate(findings, 1))


def _idle(case: Observations, notes: Sequence[Finding]) -> Finding:
    doubtful = [thread for thread in case.threads if thread.dispatch_doubt and not thread.pool]
    if doubtful:
        who = phrasing.listed([thread.label for thread in doubtful])
        text = f"Whether {who} is in the dispatcher cannot be told ({doubtful[0].dispatch_doubt})"
        text += f"; and: {notes[0].summary}" if notes else ", and no hang is proven."
        return Finding(FindingKind.IDLE, text, tuple(thread.tid for thread in doubtful))
    running = [thread for thread in case.threads if thread.state is RunState.RUNNING]
    if notes:
        text = f"No thread is in the dispatcher, and no hang is proven; but: {notes[0].summary}"
        return Finding(FindingKind.IDLE, text, notes[0].threads)
    if running:
        text = f"No thread is in the dispatcher; {phrasing.listed([t.label for t in running])} "
        text += f"runs other code{_with_gil(running, case)}." if len(running) == 1 else "run other code."
        return Finding(FindingKind.IDLE, text, tuple(thread.tid for thread in running))
    main = blocked.main_thread(case.threads, case.pid)
    doing = f"; {main.label} {phrasing.waiting(main.wait)}" if main is not None and main.wait is not None else ""
    if doing and case.complete and blocked.nobody_goes_on(case.threads):
        doing += ", and no thread of this process will end that: only a signal or another process can"
        return Finding(FindingKind.IDLE, f"No thread is in the dispatcher, and no hang is proven{doing}.")
    return Finding(FindingKind.IDLE, f"No thread is in the dispatcher, and no wait is suspicious{doing}.")


def _with_gil(running: Sequence[ThreadReport], case: Observations) -> str:
    """One look does not tell whether a thread that runs with the GIL will soon give it away."""
    tid = running[0].tid
    waiters = [each for each in case.threads if each.wait is not None and each.wait.kind is WaitKind.GIL
               and any(owner.tid == tid for owner in each.wait.owners)]  # fmt: skip
    if not waiters:
        return ""
    others = f"{len(waiters)} threads wait" if len(waiters) > 1 else f"{waiters[0].label} waits"
    return f" with the GIL, for which {others}"


def _crashes(case: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for tid, crash in case.crashes.items():
        thread = graph.threads[tid]
        if crash.kind is CrashKind.STACK_OVERFLOW and tid in case.recursions:
            continue
        step = thread.innermost
        kernel = step.kernel.function if step and step.kernel else ""
        inside = f", kernel {kernel}" if kernel else ""
        place = phrasing.place(step)
        master = graph.threads.get(case.masters.get(tid, 0))
        if step is None and master is not None:
            step = master.innermost
            inside = f" at work for {phrasing.who(master)}"
        text = f"{thread.label} crashed{place}{inside}: {crash.sentence}."
        yield Finding(FindingKind.CRASH, text, (tid,), step=step)


def _recursions(case: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for tid, recursion in case.recursions.items():
        thread = graph.threads[tid]
        crash = case.crashes.get(tid)
        overflow = f"; it ended in {crash.sentence}" if crash else ""
        names = list(dict.fromkeys(_named(step) for step in reversed(recursion.group)))
        path = phrasing.listed(names, limit=4) if len(names) < 2 else " → ".join([*names[:6], "…"])
        text = f"{thread.label} is in a runaway recursion: {path} repeated {recursion.depth} times{overflow}."
        evidence = (recursion.why, f"{recursion.steps} of {len(thread.dispatch)} dispatcher steps repeat "
                                   f"with period {len(recursion.group)}")  # fmt: skip
        yield Finding(FindingKind.RUNAWAY_RECURSION, text, (tid,), evidence, recursion.innermost)


def _named(step: DispatchFrame) -> str:
    keyset = f" with DispatchKeySet({', '.join(step.keyset.keys)})" if step.keyset else ""
    return f"{step.qualified}{keyset}"


def _deadlocks(_case: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for cycle in graph.cycles():
        threads = [graph.threads[edge.tid] for edge in cycle]
        parts = [f"{phrasing.who(thread)} {_link(edge, graph)}" for thread, edge in zip(threads, cycle)]
        proven = all(edge.wait.certainty.is_proven for edge in cycle)
        doubt = "" if proven else " (an owner is inferred from stacks)"
        step = next((thread.dispatch[0] for thread in threads if thread.dispatch), None)
        evidence = tuple(text for edge in cycle for text in edge.wait.evidence)
        tids, edges = tuple(edge.tid for edge in cycle), tuple(edge.fact for edge in cycle)
        yield Finding(FindingKind.DEADLOCK, f"{'; '.join(parts)}{doubt}.", tids, evidence, step, edges)


def _link(edge: Edge, graph: WaitGraph) -> str:
    owner, waits = graph.threads[edge.owner].label, phrasing.waiting(edge.wait)
    relation = edge.wait.kind.traits.relation
    if relation is Relation.IS:
        return f"{waits}, which is {owner}"
    if relation is Relation.OWES:
        return f"{waits}, which needs {owner}"
    return f"{waits}, which {owner} {'holds' if edge.wait.certainty.is_proven else 'seems to hold'}"


def _self_deadlocks(_case: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for edge in graph.self_loops():
        thread = graph.threads[edge.tid]
        holds = "holds" if edge.wait.certainty.is_proven else "seems to hold"
        text = f"{phrasing.who(thread)} waits for {phrasing.thing(edge.wait.resource)}, which it {holds} itself."
        edges = (edge.fact,)
        yield Finding(FindingKind.SELF_DEADLOCK, text, (edge.tid,), edge.wait.evidence, thread.innermost, edges)


def _orphans(case: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for thread in case.threads:
        wait = thread.wait
        if wait is None or wait.handover or not any(owner.gone for owner in wait.owners):
            continue
        text = f"{phrasing.who(thread)} {phrasing.waiting(wait)}{phrasing.owner_clause(wait, graph.threads)}"
        text += " (forked while it was held, or its owner ended without unlocking)."
        yield Finding(FindingKind.ORPHANED_LOCK, text, (thread.tid,), wait.evidence, thread.innermost)


def _missing(case: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    for thread in case.threads:
        if thread.wait is not None and thread.wait.missing:
            text = f"{phrasing.who(thread)} {phrasing.waiting(thread.wait)}, but {thread.wait.missing}."
            evidence = thread.wait.evidence
            yield Finding(FindingKind.MISSING_WORKERS, text, (thread.tid,), evidence, thread.innermost)


def _blocked(case: Observations, graph: WaitGraph) -> Iterator[Finding]:
    alike: dict[object, list[Chain]] = {}
    for chain in blocked.blocked_chains(case.threads, graph, case.pid, case.complete):
        alike.setdefault(_likeness(chain, graph), []).append(chain)
    for chain, *more in alike.values():
        tids = list(dict.fromkeys([edge.tid for edge in chain.edges] + [chain.end]))
        threads = [graph.threads[tid] for tid in tids if tid in graph.threads]
        with_steps = [thread for thread in threads if thread.dispatch]
        step = with_steps[-1].dispatch[0] if with_steps else None
        evidence = tuple(text for thread in threads if thread.wait for text in thread.wait.evidence)
        text = blocked.chain_sentence(chain, graph)
        if more:
            wait = "threads wait" if len(more) > 1 else "thread waits"
            text = f"{text[:-1]}; {len(more)} more {wait} in the same way."
            tids += [other.end for other in more]
        yield Finding(FindingKind.BLOCKED, text, tuple(tids), evidence, step)


def _likeness(chain: Chain, graph: WaitGraph) -> object:
    """Equal for threads that wait by themselves for the same thing in the same operator: they are one finding."""
    end = graph.threads[chain.end]
    if chain.edges or end.wait is None or not end.dispatch or not end.stack_key:
        return chain.end
    resource = end.wait.resource
    step = end.dispatch[0]
    # Python's locks, timers and descriptors are one for each thread, and yet the threads are alike.
    address = resource.address if resource.kind.traits.told_apart_by_address else 0
    return (resource.kind, address, step.op, step.overload, step.key, end.stack_key)


def _external(case: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    main = blocked.main_thread(case.threads, case.pid)
    if case.stopped and main is not None:
        text = f"The process is stopped (by SIGSTOP or Ctrl+Z), and goes on with: kill -CONT {case.pid}."
        kind, step = FindingKind.WAITING_EXTERNAL, main.innermost
        yield Finding(kind, text, (main.tid,), step=step, process_stopped=True)
    for thread in blocked.external_waiters(case.threads, case.pid):
        assert thread.wait is not None
        text = f"{phrasing.who(thread)} {phrasing.waiting(thread.wait)}."
        evidence = thread.wait.evidence
        yield Finding(FindingKind.WAITING_EXTERNAL, text, (thread.tid,), evidence, thread.innermost)


def _busy(case: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for thread in blocked.busy_threads(case.threads, graph, case.pid):
        step = thread.dispatch[0]
        kernel = f", kernel {step.kernel.function}" if step.kernel else ""
        verb = "runs" if thread.state is RunState.RUNNING else "waits for threads that run,"
        text = f"{thread.label} {verb}{phrasing.place(step)}{kernel}, stage {step.stage.value}."
        yield Finding(FindingKind.BUSY, text, (thread.tid,), step=step)
