"""Stuck, spinning or moving on, over several looks."""

from __future__ import annotations

import pytest
from analysis_facts import step, thread, wait

from gdbext.model.finding import Finding
from gdbext.model.finding_kind import FindingKind
from gdbext.model.threads.thread_report import RunState
from gdbext.model.verdict import Verdict
from gdbext.verdict.progress import Place, compare, revised, summary


def place(*addresses, line=1, seconds=0.0):
    return Place(tuple(range(40)) + addresses, (("work", line),), seconds)


def kinds(*looks, ran=4.0):
    return {each.tid: each.progress.value for each in compare(looks, ran)}


def test_stuck_even_where_a_wait_wakes_up_and_begins_again():
    assert kinds({1: place(91, 92)}, {1: place(93)}, {1: place(91, 92, 94)}) == {1: "stuck"}


@pytest.mark.parametrize("other", [place(line=2), Place((7,) * 40, (("work", 1),), 0.0)])
def test_another_line_or_another_caller_is_progress(other):
    assert kinds({1: place()}, {1: other}) == {1: "moved"}


def test_spinning_uses_the_processor_at_one_place():
    assert kinds({1: place(seconds=1.0)}, {1: place(seconds=4.5)}) == {1: "spinning"}
    assert kinds({1: place(seconds=1.0)}, {1: place(seconds=1.1)}) == {1: "stuck"}
    assert kinds({1: place(seconds=None)}, {1: place(seconds=None)}) == {1: "stuck"}


def test_threads_come_and_go():
    assert kinds({1: place(), 2: place()}, {1: place(), 3: place()}) == {1: "stuck", 2: "ended", 3: "new"}


def test_a_wait_that_moved_on_is_slow_and_not_stuck():
    threads = [thread(1, wait("condvar"), [step("aten::mm")])]
    verdict = Verdict(Finding(FindingKind.BLOCKED, "It waits.", (1,)))
    moved, stuck = (compare([{1: place()}, {1: place(line=line)}], 1.0) for line in (2, 1))
    assert revised(verdict, moved, threads).finding.kind is FindingKind.BUSY
    assert revised(verdict, moved, threads).finding.summary.startswith("Slow, not stuck")
    assert revised(verdict, stuck, threads) is verdict
    crash = Verdict(Finding(FindingKind.CRASH, "It crashed.", (1,)))
    assert revised(crash, moved, threads) is crash


def test_the_summary_leaves_idle_workers_out():
    threads = [thread(1, name="main"), thread(2, wait("worker-pool"), state=RunState.IDLE, name="pool")]
    found = compare([{1: place(), 2: place()}] * 2, 2.0)
    note = summary(found, threads, 2, 2.0)
    assert "main" in note.summary
    assert "pool" not in note.summary
