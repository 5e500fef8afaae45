"""Stuck, spinning or moving on, over several looks."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.thread_report import Finding, FindingKind, RunState, Verdict
from gdbext.diagnosis.verdict.progress import SamplePlace, compare, dispatches, revised, summary
from support.fakes.analysis_facts import step, thread, wait

NOTHING = (0, 0, 0, 0)


def place(*addresses, line=1, instruction=7, functions=()):
    return SamplePlace(tuple(range(40)) + addresses, (("work", line),), (0x1000, instruction), functions)


def found(*looks, done=NOTHING, ran=4.0, waking=()):
    """``done``: by every thread between each two samples."""
    return compare(looks, [dict.fromkeys(looks[0], done)] * (len(looks) - 1), ran, set(waking))


def kinds(*looks, **more):
    return {each.tid: each.progress.value for each in found(*looks, **more)}


def test_stuck_even_where_a_wait_wakes_up_and_begins_again():
    assert kinds({1: place(91, 92)}, {1: place(93)}, {1: place(91, 92, 94)}) == {1: "stuck"}


@pytest.mark.parametrize("other", [place(line=2), place(instruction=8), SamplePlace((7,) * 40, (("work", 1),))])
def test_another_line_or_another_caller_is_progress(other):
    assert kinds({1: place()}, {1: other}) == {1: "moved"}


def test_spinning_uses_the_processor_at_one_place():
    assert kinds({1: place()}, {1: place()}, done=(3_500_000_000, 0, 0, 0)) == {1: "spinning"}
    assert kinds({1: place()}, {1: place()}, done=(None,) * 4) == {1: "stuck"}


def test_a_thread_that_runs_at_every_sample_spins_however_little_of_the_processor_it_gets():
    looks = [{1: place(at, functions=("match (sre.so)", "search (sre.so)"))} for at in (91, 92)]
    (spins,) = found(*looks, done=(100_000, 3, 0, 0))
    assert (spins.progress.value, spins.place) == ("spinning", "match (sre.so)")


@pytest.mark.parametrize(("done", "moved"), [
    ((1000, 0, 0, 0), "processor time"), ((0, 1, 0, 0), "context switches"), ((0, 0, 9, 0), "bytes read or written"),
    ((0, 0, 0, 1), "page faults"),
])  # fmt: skip
def test_who_stands_still_does_nothing_at_all(done, moved):
    (same,) = found({1: place()}, {1: place()}, done=done)
    assert (same.progress.value, same.moved) == ("same-place", (moved,))


def test_the_wait_for_the_gil_wakes_up_by_itself():
    assert kinds({1: place()}, {1: place()}, done=(1000, 400, 0, 0), waking=[1]) == {1: "stuck"}
    assert kinds({1: place()}, {1: place()}, done=(1000, 400, 9, 0), waking=[1]) == {1: "same-place"}


def test_threads_come_and_go():
    assert kinds({1: place(), 2: place()}, {1: place(), 3: place()}) == {1: "stuck", 2: "ended", 3: "new"}


def test_a_wait_that_moved_on_is_slow_and_not_stuck():
    threads = [thread(1, wait("condvar"), [step("aten::mm")])]
    verdict = Verdict(Finding(FindingKind.BLOCKED, "It waits.", (1,)))
    moved, stuck = (found({1: place()}, {1: place(line=line)}) for line in (2, 1))
    assert revised(verdict, moved, threads).finding.kind is FindingKind.BUSY
    assert revised(verdict, moved, threads).finding.summary.startswith("Not stuck")
    assert revised(verdict, stuck, threads) is verdict
    crash = Verdict(Finding(FindingKind.CRASH, "It crashed.", (1,)))
    assert revised(crash, moved, threads) is crash


def test_the_summary_leaves_idle_workers_out():
    threads = [thread(1, name="main"), thread(2, wait("worker-pool"), state=RunState.IDLE, name="pool")]
    note = summary(found(*[{1: place(), 2: place()}] * 2), threads, 2, 2.0)
    assert "main" in note.summary
    assert "pool" not in note.summary


def test_dispatches_between_samples() -> None:
    assert dispatches(3000, 2.0).summary == "Dispatches go on: 1,500 calls of operators a second."
    assert dispatches(0, 2.0).summary == "No operator was called meanwhile."
