"""Stuck, spinning or moving on, over several looks."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.kinds import rank_of
from gdbext.diagnosis.kinds.blocked import BLOCKED
from gdbext.diagnosis.kinds.crashed import CRASH
from gdbext.diagnosis.kinds.state import BUSY, IDLE
from gdbext.diagnosis.report.finding import NOTE, Finding, Verdict
from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.verdict.graph import Observations
from gdbext.diagnosis.verdict.judgement import judge
from gdbext.diagnosis.verdict.progress import (
    SamplePlace,
    compare,
    judge_samples,
    revise_verdict,
    samples_note,
    with_operator_calls,
)
from support.fakes.analysis_facts import step, thread, wait

NOTHING = (0, 0, 0, 0)
SPINS = (3_500_000_000, 0, 0, 0)


def place(*addresses, line=1, instruction=7, functions=()):
    return SamplePlace(tuple(range(40)) + addresses, (("work", line),), (0x1000, instruction), functions)


def found(*looks, done=NOTHING, ran=4.0, waking=()):
    """``done``: by every thread between each two samples."""
    return compare(looks, [dict.fromkeys(looks[0], done)] * (len(looks) - 1), ran, set(waking))


def kinds(*looks, **more):
    return {each.tid: each.progress.value for each in found(*looks, **more)}


MOVED = SamplePlace((7,) * 40, (("work", 1),))


@pytest.mark.parametrize(
    ("looks", "more", "progress"),
    [
        ([place(91, 92), place(93), place(91, 92, 94)], {}, "stuck"),  # a wait wakes up and begins again
        ([place(), place(line=2)], {}, "moved"),
        ([place(), place(instruction=8)], {}, "moved"),
        ([place(), MOVED], {}, "moved"),
        ([place()] * 2, {"done": SPINS}, "spinning"),
        ([place()] * 2, {"done": (None,) * 4}, "stuck"),
        ([place()] * 2, {"done": (1000, 400, 0, 0), "waking": [1]}, "stuck"),  # as who waits for the GIL
        ([place()] * 2, {"done": (1000, 400, 9, 0), "waking": [1]}, "same-place"),
    ],
)
def test_progress(looks, more, progress):
    assert kinds(*({1: each} for each in looks), **more) == {1: progress}


def test_a_thread_that_runs_at_every_sample_spins_however_little_of_the_processor_it_gets():
    looks = [{1: place(at, functions=("match (sre.so)", "search (sre.so)"))} for at in (91, 92)]
    (spins,) = found(*looks, done=(100_000, 3, 0, 0))
    assert (spins.progress.value, spins.place) == ("spinning", "match (sre.so)")


@pytest.mark.parametrize(
    ("done", "moved"),
    [
        ((1000, 0, 0, 0), "processor time"),
        ((0, 1, 0, 0), "context switches"),
        ((0, 0, 9, 0), "bytes read or written"),
        ((0, 0, 0, 1), "page faults"),
    ],
)
def test_who_stands_still_does_nothing_at_all(done, moved):
    (same,) = found({1: place()}, {1: place()}, done=done)
    assert (same.progress.value, same.moved) == ("same-place", (moved,))


def test_threads_come_and_go():
    assert kinds({1: place(), 2: place()}, {1: place(), 3: place()}) == {1: "stuck", 2: "ended", 3: "new"}


def test_a_wait_that_moved_on_is_slow_and_not_stuck():
    threads = [thread(1, wait("condvar"), [step("aten::mm")])]
    verdict = Verdict.of(Finding(BLOCKED, "It waits.", (1,)))
    moved, stuck = (found({1: place()}, {1: place(line=line)}) for line in (2, 1))
    assert revise_verdict(verdict, moved, threads).finding.kind is BUSY
    assert revise_verdict(verdict, moved, threads).finding.summary.startswith("Not stuck")
    assert revise_verdict(verdict, stuck, threads) is verdict
    crash = Verdict.of(Finding(CRASH, "It crashed.", (1,)))
    assert revise_verdict(crash, moved, threads) is crash


def test_summaries():
    threads = [thread(1, name="main"), thread(2, wait("worker-pool"), state=RunState.IDLE, name="pool")]
    note = samples_note(found(*[{1: place(), 2: place()}] * 2), threads, 2, 2.0)
    assert "main" in note.summary
    assert "pool" not in note.summary
    judgement = judge(Observations(threads, 1))
    for calls, text in (3000, "Dispatches continue: 1,500 operator calls a second."), (0, "No operator was called"):
        assert judge_samples(judgement, (), threads, 2, 2.0, calls).findings[1].summary.startswith(text)


STATES = {
    "runs": thread(1, dispatch=[step("aten::mm")]),
    "waits": thread(1, wait("mutex", 2)),
    "idles": thread(1, state=RunState.IDLE),
}
PLACES = {"moves": place(line=2), "stays": place()}


@pytest.mark.parametrize("calls", [0, 174])
@pytest.mark.parametrize("done", [NOTHING, SPINS])
@pytest.mark.parametrize("moves", PLACES)
@pytest.mark.parametrize("second", STATES)
@pytest.mark.parametrize("first", STATES)
def test_findings_of_one_report_do_not_contradict_each_other(first, second, moves, done, calls):
    """Two looks at two threads, as one judgement: the first may move, the second stays where it is."""
    threads = (STATES[first], STATES[second]._replace(tid=2))
    judgement = judge(Observations(threads, 1))
    progress = found({1: place(), 2: place()}, {1: PLACES[moves], 2: place()}, done=done)
    progress = with_operator_calls(progress, threads, calls)
    findings, verdict = judge_samples(judgement, progress, threads, 2, 2.0, calls)
    text = " ".join(finding.summary for finding in findings)
    moved = {each.tid for each in progress if each.progress.value == "moved"}
    assert not ("without leaving one function" in text and "Dispatches continue" in text)
    assert not (verdict.kind is IDLE and "Dispatches continue" in text)
    for finding in (verdict.finding, *findings):
        if finding.kind.movement_refutes_it:
            assert moved.isdisjoint(finding.threads), finding
    for each in threads:
        if each.state is RunState.RUNNING:
            assert f"thread {each.tid} made no progress" not in text
    strongest = min((rank_of(each.kind.value) for each in findings if each.kind is not NOTE), default=None)
    assert strongest is None or rank_of(verdict.kind.value) <= strongest


def test_who_calls_operators_leaves_his_place():
    (only,) = with_operator_calls(found({1: place()}, {1: place()}, done=SPINS), [STATES["runs"]], 5)
    assert (only.progress.value, only.moved[-1]) == ("moved", "operator calls")
    two = [STATES["runs"], STATES["runs"]._replace(tid=2)]
    both = with_operator_calls(found(*[{1: place(), 2: place()}] * 2, done=SPINS), two, 5)
    assert {each.progress.value for each in both} == {"same-place"}
