"""From facts to findings, and from findings to the one verdict (contract, section 4). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gdbext.analysis import stuck, words
from gdbext.analysis.crash import Crash
from gdbext.analysis.facts import VERDICT_KINDS, CycleEdge, Finding, Step, ThreadFacts, Verdict
from gdbext.analysis.graph import Chain, Edge, WaitGraph
from gdbext.analysis.recursion import Recursion


@dataclass(frozen=True)
class Case:
    """Everything that a verdict is made from."""

    threads: Sequence[ThreadFacts]
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
class Candidate:
    """A finding that can become the verdict, with the operator it is about."""

    finding: Finding
    step: Step | None = None
    cycle: tuple[CycleEdge, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """All findings, strongest first, and the verdict."""

    findings: tuple[Finding, ...]
    verdict: Verdict


def judge(case: Case) -> Judgement:
    """The findings and the verdict of one look at a process."""
    graph = WaitGraph(case.threads)
    candidates: list[Candidate] = []
    rules: tuple[Callable[[Case, WaitGraph], Iterator[Candidate]], ...] = (
        _crashes, _recursions, _deadlocks, _self_deadlocks, _orphans, _missing, _blocked, _external, _busy,
    )  # fmt: skip
    for rule in rules:
        candidates.extend(rule(case, graph))
    notes = tuple(Finding("note", text, tids) for text, tids in stuck.uncertainties(case.threads, graph))
    order = {kind: rank for rank, kind in enumerate(VERDICT_KINDS)}
    candidates.sort(key=lambda candidate: order[candidate.finding.kind])
    findings = tuple(c.finding for c in candidates if c.finding.kind != "busy") + notes
    return Judgement(findings, _verdict(candidates, case, notes))


def _verdict(candidates: Sequence[Candidate], case: Case, notes: Sequence[Finding]) -> Verdict:
    if not candidates:
        return _idle(case, notes)
    best = candidates[0]
    step = best.step
    summary = best.finding.summary
    if best.finding.kind == "busy" and notes:
        summary += f" {notes[0].summary}"
    return Verdict(
        best.finding.kind,
        summary,
        best.finding.threads,
        op=step.op if step else None,
        key=step.key if step else None,
        stage=step.stage if step else None,
        cycle=best.cycle,
    )


def _idle(case: Case, notes: Sequence[Finding]) -> Verdict:
    doubtful = [thread for thread in case.threads if thread.dispatch_doubt and not thread.pool]
    if doubtful:
        who = words.listed([thread.label for thread in doubtful])
        text = f"Whether {who} is in the dispatcher cannot be told ({doubtful[0].dispatch_doubt})"
        text += f"; and: {notes[0].summary}" if notes else ", and no hang is proven."
        return Verdict("idle", text, tuple(thread.tid for thread in doubtful))
    running = [thread for thread in case.threads if thread.state == "running"]
    if notes:
        text = f"No thread is in the dispatcher, and no hang is proven; but: {notes[0].summary}"
        return Verdict("idle", text, notes[0].threads)
    if running:
        text = f"No thread is in the dispatcher; {words.listed([t.label for t in running])} "
        text += f"runs other code{_with_gil(running, case)}." if len(running) == 1 else "run other code."
        return Verdict("idle", text, tuple(thread.tid for thread in running))
    main = stuck.main_thread(case.threads, case.pid)
    doing = f"; {main.label} {words.waiting(main.wait)}" if main is not None and main.wait is not None else ""
    if doing and case.complete and stuck.nobody_goes_on(case.threads):
        doing += ", and no thread of this process will end that: only a signal or another process can"
        return Verdict("idle", f"No thread is in the dispatcher, and no hang is proven{doing}.")
    return Verdict("idle", f"No thread is in the dispatcher, and no wait is suspicious{doing}.")


def _with_gil(running: Sequence[ThreadFacts], case: Case) -> str:
    """One look does not tell whether a thread that runs with the GIL will soon give it away."""
    tid = running[0].tid
    waiters = [each for each in case.threads if each.wait is not None and each.wait.resource.kind == "gil"
               and any(owner.tid == tid for owner in each.wait.owners)]  # fmt: skip
    if not waiters:
        return ""
    others = f"{len(waiters)} threads wait" if len(waiters) > 1 else f"{waiters[0].label} waits"
    return f" with the GIL, for which {others}"


def _crashes(case: Case, graph: WaitGraph) -> Iterator[Candidate]:
    for tid, crash in case.crashes.items():
        thread = graph.threads[tid]
        if crash.kind == "stack-overflow" and tid in case.recursions:
            continue
        step = words.innermost(thread)
        kernel = step.kernel.function if step and step.kernel else ""
        inside = f", kernel {kernel}" if kernel else ""
        place = words.place(step)
        master = graph.threads.get(case.masters.get(tid, 0))
        if step is None and master is not None:
            step = words.innermost(master)
            inside = f" at work for {words.who(master)}"
        yield Candidate(Finding("crash", f"{thread.label} crashed{place}{inside}: {crash.sentence}.", (tid,)), step)


def _recursions(case: Case, graph: WaitGraph) -> Iterator[Candidate]:
    for tid, recursion in case.recursions.items():
        thread = graph.threads[tid]
        crash = case.crashes.get(tid)
        overflow = f"; it ended in {crash.sentence}" if crash else ""
        names = list(dict.fromkeys(_named(step) for step in reversed(recursion.group)))
        path = words.listed(names, limit=4) if len(names) < 2 else " → ".join([*names[:6], "…"])
        text = f"{thread.label} is in a runaway recursion: {path} repeated {recursion.depth} times{overflow}."
        evidence = (recursion.why, f"{recursion.steps} of {len(thread.dispatch)} dispatcher steps repeat "
                                   f"with period {len(recursion.group)}")  # fmt: skip
        yield Candidate(Finding("runaway-recursion", text, (tid,), evidence), recursion.innermost)


def _named(step: Step) -> str:
    keyset = f" with DispatchKeySet({', '.join(step.keyset.keys)})" if step.keyset else ""
    return f"{step.qualified}{keyset}"


def _deadlocks(_case: Case, graph: WaitGraph) -> Iterator[Candidate]:
    for cycle in graph.cycles():
        threads = [graph.threads[edge.tid] for edge in cycle]
        parts = [f"{words.who(thread)} {_link(edge, graph)}" for thread, edge in zip(threads, cycle)]
        proven = all(edge.wait.certainty == "recorded" for edge in cycle)
        doubt = "" if proven else " (an owner is inferred from stacks)"
        step = next((thread.dispatch[0] for thread in threads if thread.dispatch), None)
        evidence = tuple(text for edge in cycle for text in edge.wait.evidence)
        yield Candidate(
            Finding("deadlock", f"{'; '.join(parts)}{doubt}.", tuple(e.tid for e in cycle), evidence),
            step,
            tuple(edge.fact for edge in cycle),
        )


def _link(edge: Edge, graph: WaitGraph) -> str:
    owner, waits = graph.threads[edge.owner].label, words.waiting(edge.wait)
    if edge.wait.resource.kind == "join":
        return f"{waits}, which is {owner}"
    if edge.wait.resource.kind in ("barrier", "worker-pool", "queue", "condvar"):
        return f"{waits}, which needs {owner}"
    return f"{waits}, which {owner} {'holds' if edge.wait.certainty == 'recorded' else 'seems to hold'}"


def _self_deadlocks(_case: Case, graph: WaitGraph) -> Iterator[Candidate]:
    for edge in graph.self_loops():
        thread = graph.threads[edge.tid]
        holds = "holds" if edge.wait.certainty == "recorded" else "seems to hold"
        text = f"{words.who(thread)} waits for {words.thing(edge.wait.resource)}, which it {holds} itself."
        yield Candidate(
            Finding("self-deadlock", text, (edge.tid,), edge.wait.evidence), words.innermost(thread), (edge.fact,)
        )


def _orphans(case: Case, graph: WaitGraph) -> Iterator[Candidate]:
    for thread in case.threads:
        wait = thread.wait
        if wait is None or wait.handover or not any(owner.state == "gone" for owner in wait.owners):
            continue
        text = f"{words.who(thread)} {words.waiting(wait)}{words.owner_clause(wait, graph.threads)}"
        text += " (forked while it was held, or its owner ended without unlocking)."
        yield Candidate(Finding("orphaned-lock", text, (thread.tid,), wait.evidence), words.innermost(thread))


def _missing(case: Case, _graph: WaitGraph) -> Iterator[Candidate]:
    for thread in case.threads:
        if thread.wait is not None and thread.wait.missing:
            text = f"{words.who(thread)} {words.waiting(thread.wait)}, but {thread.wait.missing}."
            yield Candidate(
                Finding("missing-workers", text, (thread.tid,), thread.wait.evidence), words.innermost(thread)
            )


def _blocked(case: Case, graph: WaitGraph) -> Iterator[Candidate]:
    alike: dict[object, list[Chain]] = {}
    for chain in stuck.blocked_chains(case.threads, graph, case.pid, case.complete):
        alike.setdefault(_likeness(chain, graph), []).append(chain)
    for chain, *more in alike.values():
        tids = list(dict.fromkeys([edge.tid for edge in chain.edges] + [chain.end]))
        threads = [graph.threads[tid] for tid in tids if tid in graph.threads]
        with_steps = [thread for thread in threads if thread.dispatch]
        step = with_steps[-1].dispatch[0] if with_steps else None
        evidence = tuple(text for thread in threads if thread.wait for text in thread.wait.evidence)
        text = stuck.chain_sentence(chain, graph)
        if more:
            wait = "threads wait" if len(more) > 1 else "thread waits"
            text = f"{text[:-1]}; {len(more)} more {wait} in the same way."
            tids += [other.end for other in more]
        yield Candidate(Finding("blocked", text, tuple(tids), evidence), step)


def _likeness(chain: Chain, graph: WaitGraph) -> object:
    """Equal for threads that wait by themselves for the same thing in the same operator: they are one finding."""
    end = graph.threads[chain.end]
    if chain.edges or end.wait is None or not end.dispatch or not end.stack_key:
        return chain.end
    resource = end.wait.resource
    step = end.dispatch[0]
    # Python's locks, timers and descriptors are one for each thread, and yet the threads are alike.
    address = resource.address if resource.kind in ("mutex", "rwlock", "static-init", "once") else 0
    return (resource.kind, address, step.op, step.overload, step.key, end.stack_key)


def _external(case: Case, _graph: WaitGraph) -> Iterator[Candidate]:
    main = stuck.main_thread(case.threads, case.pid)
    if case.stopped and main is not None:
        text = f"The process is stopped (by SIGSTOP or Ctrl+Z), and goes on with: kill -CONT {case.pid}."
        yield Candidate(Finding("waiting-external", text, (main.tid,)), words.innermost(main))
    for thread in stuck.external_waiters(case.threads, case.pid):
        assert thread.wait is not None
        text = f"{words.who(thread)} {words.waiting(thread.wait)}."
        yield Candidate(Finding("waiting-external", text, (thread.tid,), thread.wait.evidence), words.innermost(thread))


def _busy(case: Case, graph: WaitGraph) -> Iterator[Candidate]:
    for thread in stuck.busy_threads(case.threads, graph, case.pid):
        step = thread.dispatch[0]
        kernel = f", kernel {step.kernel.function}" if step.kernel else ""
        verb = "runs" if thread.state == "running" else "waits for threads that run,"
        text = f"{thread.label} {verb}{words.place(step)}{kernel}, stage {step.stage}."
        yield Candidate(Finding("busy", text, (thread.tid,)), step)
