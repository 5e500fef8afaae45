"""Whether ranks ran on while others were looked at."""

from __future__ import annotations

import os
import signal
import threading

from gdbext.diagnosis.report.wait import CollectiveWait
from gdbext.tools.ranks.collector import ProgressOfRanks, combine_looks, is_settled
from gdbext.tools.ranks.job_judge import judge
from gdbext.tools.ranks.job_report import GroupState, Issued, RankReport, rows
from support.programs import procfs
from support.programs.harness import wait_until


def report(rank: int, enqueued: int, waits: bool, pid: int = 0) -> RankReport:
    wait = CollectiveWait("all_reduce", enqueued, "default_pg", enqueued, enqueued - 1) if waits else None
    issued = Issued(enqueued, "all_reduce", is_pending=waits)
    group = GroupState("0", "default_pg", 2, "0-1", enqueued, enqueued - waits, (issued,))
    kind = "waiting-external" if waits else "idle"
    return RankReport(rank, "node1", pid or 100 + rank, "job", 2, "2.13.0", kind, "", wait=wait, groups=(group,))


def test_a_rank_that_waits_elsewhere_by_now_runs_and_one_that_waits_where_it_waited_hangs() -> None:
    waiting, late = report(0, 18, True), report(1, 17, False)
    assert combine_looks(waiting, waiting) == waiting
    assert judge(rows([waiting, late])).verdict.kind.value == "late-rank"
    found = judge(rows([combine_looks(waiting, report(0, 25, True)), late]))
    assert (found.verdict.kind.value, found.collectives) == ("all-busy", ())


def test_who_has_run_since() -> None:
    """A process whose main thread sleeps has not; ours has. One that waits for nobody is not asked."""
    asleep = os.fork()
    if asleep == 0:
        signal.pause()
        os._exit(0)
    try:
        wait_until(lambda: procfs.state(asleep, asleep) == "S", "the child sleeps")
        waiting, idle = report(0, 18, True, asleep), report(1, 18, False, os.getpid())
        moving = report(2, 18, True, os.getpid())
        progress = ProgressOfRanks([asleep, os.getpid()])
        assert wait_until(lambda: progress.that_ran([waiting, idle, moving]), "one has run") == [moving]
    finally:
        os.kill(asleep, signal.SIGKILL)
        os.waitpid(asleep, 0)


def test_the_thread_that_waits_is_the_one_that_counts() -> None:
    """The main thread is this one, which runs; the other one sleeps. A thread that has begun since has run."""
    done = threading.Event()
    waiting = threading.Thread(target=done.wait)
    waiting.start()
    try:
        tid = waiting.native_id or 0
        wait_until(lambda: procfs.state(os.getpid(), tid) == "S", "the thread sleeps")
        of_main = report(0, 18, True, os.getpid())
        of_thread, of_new_one = of_main._replace(thread=tid), of_main._replace(thread=1)
        progress = ProgressOfRanks([os.getpid()])
        wait_until(lambda: progress.that_ran([of_main]), "the main thread has run")
        assert progress.that_ran([of_main, of_thread, of_new_one]) == [of_main, of_new_one]
    finally:
        done.set()
        waiting.join()


def test_a_process_that_has_ended_has_moved_or_is_unknown() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    ended = report(0, 18, True, pid)
    progress = ProgressOfRanks([pid])
    os.waitpid(pid, 0)
    assert progress.that_ran([ended]) == [ended]


def test_what_moved_before_its_report_came_has_moved() -> None:
    """The second rank was seen in #18, went on to #25 while its report was written, and sleeps there since: the first
    one, seen in #25, waits for nobody who stands in another operation."""
    first, second = report(0, 25, True), report(1, 18, True)
    assert not is_settled([first, second])
    assert judge(rows([first, second])).verdict.kind.value == "mismatched-collective"
    later = combine_looks(second, report(1, 25, True))
    assert judge(rows([first, later])).verdict.kind.value in ("all-busy", "all-idle")


def test_where_all_wait_in_one_operation_nobody_waits_for_another() -> None:
    assert is_settled([report(0, 18, True), report(1, 18, True)])
    assert is_settled([report(0, 18, False), report(1, 17, False)])
    assert not is_settled([report(0, 18, True), report(1, 17, False)])
