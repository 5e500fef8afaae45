"""Waits that no thread is known to end: chains of threads, and event loops that nothing wakes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.diagnosis.kinds.lost import waits_for_lost
from gdbext.diagnosis.kinds.verdict_kind import VerdictKind
from gdbext.diagnosis.report.finding import Finding
from gdbext.diagnosis.report.suggestion import Suggestion
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.report.wait_kind import Loss, WaitKind
from gdbext.diagnosis.verdict.clauses import (
    back_clause,
    end_clause,
    explained_chain,
    holds_verb,
    loop_clause,
    owner_clause,
    waiting_clause,
)
from gdbext.diagnosis.verdict.graph import Chain, Observations, WaitGraph, blocked_chains, may_wake_others, task_cycles
from gdbext.engine.vocabulary import counted, singular_or_plural


class Blocked(VerdictKind):
    """A thread waits, and no thread was found that will end the wait."""

    value = "blocked"
    words = "stuck"
    what_to_do = "the report names the Python line that waits, and the exited thread that should have acted, if any"
    is_defect = may_be_slow = movement_refutes_it = True

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """Loops that nothing wakes, waits for lost threads, and chains that no thread is known to end."""
        yield from self._find_loops(facts)
        yield from waits_for_lost(self, (Loss.ENDED, Loss.NEVER_BEGAN), facts, graph)
        groups: dict[object, list[Chain]] = {}
        for chain in blocked_chains(facts, graph):
            end = graph.threads[chain.end]
            key: object = chain.end
            if not chain.edges and end.wait and end.dispatch and end.stack_key:
                # Threads that wait by themselves for the same thing in the same operator are one finding. Python's
                # locks, timers and file descriptors are one for each thread, and yet the threads are alike.
                resource, step = end.wait.resource, end.dispatch[0]
                address = resource.address if resource.kind.traits.told_apart_by_address else 0
                key = (resource.kind, address, step.op, step.overload, step.key, end.stack_key)
            groups.setdefault(key, []).append(chain)
        for chain, *more in groups.values():
            threads = [graph.threads[tid] for tid in chain.tids if tid in graph.threads]
            last_step = next((thread.innermost for thread in reversed(threads) if thread.innermost), None)
            evidence = tuple(text for thread in threads if thread.wait for text in thread.wait.evidence)
            expected = graph.explained_chain(chain.end, chain.tids) if not more else None
            text = self.sentence(chain, graph, len(more), expected)
            tids = (*dict.fromkeys((*chain.tids, *(expected.tids if expected else ()))), *(other.end for other in more))
            yield Finding(self, text, tids, evidence, last_step, wait=graph.threads[chain.end].wait)

    def _find_loops(self, facts: Observations) -> Iterator[Finding]:
        """Event loops that nothing will wake, and loops that sleep although callbacks are due: a loop checks these
        before it sleeps (Lib/asyncio/base_events.py, _run_once), so code that does not wake it added them later."""
        for thread in facts.threads:
            loop, tids = thread.loop, (thread.tid,)
            if loop and is_stuck(thread, facts) and not any(task_cycles(loop)):
                others = "no other thread of the process can make progress"
                others = others if facts.threads[1:] else "the process has no other thread"
                text = (
                    f"The event loop of {thread.label} has no timer, fd or signal handler "
                    f"that could wake it, and {others}: none of its tasks will ever run again{loop_clause(thread)}."
                )
                evidence = tuple(f"{task.called}: {task.frames[0].place}" for task in loop.tasks if task.frames)
                yield Finding(self, text, tids, evidence, wait=thread.wait)
        for thread in facts.threads:
            if thread.loop and is_unwoken(thread):
                count = thread.loop.ready or 0
                due = f"{counted(count, 'callback')} {singular_or_plural(count, 'is', 'are')}"
                text = (
                    f"The event loop of {thread.label} sleeps, although {due} due: another thread or a signal "
                    f"handler added it without waking the loop{loop_clause(thread)}."
                )
                yield Finding(self, text, (thread.tid,), wait=thread.wait, cures=(_WAKE,))

    def sentence(self, chain: Chain, graph: WaitGraph, alike: int, expected: Chain | None) -> str:
        """The sentence of a finding. ``alike``: number of further threads that wait in the same way; ``expected``: the
        continuation of the chain to threads that may end its last wait."""
        parts = [
            waiting_clause(graph.threads[edge.tid], edge.wait) + owner_clause(edge.wait, graph.threads)
            for edge in chain.edges
        ]
        end = graph.threads[chain.end]
        if expected and expected.edges:
            return "; ".join([*parts, explained_chain(expected, graph)]) + "."
        clause = (back_clause(chain, graph) or end_clause(end.wait)) if end.wait else ""
        parts.append(f"{waiting_clause(end, end.wait)}{clause}" if end.wait else end.label)
        if alike:
            parts.append(f"{alike} more {'threads wait' if alike > 1 else 'thread waits'} in the same way")
        return "; ".join(parts) + _waiters_clause(chain, graph) + "."

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        last = involved[-1] if involved else None
        if not last:
            return
        yield from finding.cures
        if last.loop and (last.loop.is_stuck or finding.cures):
            yield Suggestion("What the tasks of the event loop wait for", "all-threads --tasks")
            return
        if finding.wait and finding.wait.detail.lost:
            yield from finding.wait.detail.advice_on_absence
        elif last.wait:
            yield from last.wait.detail.advice_when_blocked(last.wait.kind)
        line = last.user_line or last.python_line
        if line:
            yield f"The Python line that waits: {line}"


_WAKE = (
    "Other threads must hand their calls over with loop.call_soon_threadsafe(), or asyncio.run_coroutine_threadsafe(): "
    "Event.set(), Queue.put_nowait() and Future.set_result() of asyncio do not wake the loop from there."
)


def is_unwoken(thread: ThreadReport) -> bool:
    """True if the thread's event loop sleeps without a time limit although callbacks are due."""
    wait, loop = thread.wait, thread.loop
    sleeps = wait is not None and wait.kind is WaitKind.IO and not wait.timed
    return sleeps and loop is not None and bool(loop.ready) and not loop.current


def is_stuck(thread: ThreadReport, facts: Observations) -> bool:
    """True if the thread runs an event loop that only other threads could wake, and none of them will."""
    if not thread.loop or not thread.loop.is_stuck or not facts.complete:
        return False
    if not thread.wait or thread.wait.kind is not WaitKind.IO or (thread.wait.timed and not thread.loop.always_timed):
        return False
    return not any(may_wake_others(other) for other in facts.threads if other is not thread)


def _waiters_clause(chain: Chain, graph: WaitGraph) -> str:
    """``; meanwhile feeder (tid 3) waits for the mutex 0x7f00, which worker (tid 2) holds``: a wait for a thread of the
    chain may be the reason why no thread ends the chain's last wait; "" if there is none, or the chain shows it."""
    if chain.edges and chain.edges[-1].wait.kind.traits.relation.is_possession:
        return ""
    wanting = [
        (waiter, waiter.wait, owner)
        for owner in chain.tids[::-1]
        for waiter in (graph.threads[tid] for tid in graph.waiters.get(owner, ()))
        if waiter.tid not in chain.tids and waiter.wait and waiter.wait.kind.traits.relation.is_possession
    ]
    if not wanting:
        return ""
    others = f" ({len(wanting) - 1} more wait for such resources)" if wanting[1:] else ""
    first, wait, owner = wanting[0]
    holds = holds_verb(wait.kind, wait.certainty.is_proven)
    return f"; meanwhile {first.label} {wait.phrase}, which {graph.threads[owner].label} {holds}{others}"


BLOCKED = Blocked()
