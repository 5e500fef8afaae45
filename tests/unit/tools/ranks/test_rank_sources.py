"""Workers that look at ranks, and whether ranks ran on meanwhile."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn

import pytest

from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.engine.targets.live import return_counter
from gdbext.tools.ranks import rank_sources
from gdbext.tools.ranks.job_judge import judge
from gdbext.tools.ranks.job_report import GroupState, Issued, RankReport, rows
from gdbext.tools.ranks.rank_sources import ProgressOfRanks, RankSource, Result, collect, combine_reports, is_settled
from support.programs import procfs
from support.programs.harness import PATIENCE, wait_until

FOREVER = 1 << 20


def collected(looks: list[Callable[[], str]], jobs: int = 2, timeout: float = 60.0) -> list[Result]:
    named = [RankSource(str(number), run) for number, run in enumerate(looks)]
    return sorted(collect(named, jobs, timeout))


def own_pid() -> str:
    return str(os.getpid())


def hang() -> str:
    time.sleep(FOREVER)
    return "never"


def die() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def test_a_worker_serves_one_look_after_the_other() -> None:
    long = "ä" * 300_000  # more than a pipe holds
    *found, longest, empty = collected([*[own_pid] * 6, lambda: long, lambda: ""])
    assert [result.problem for result in (*found, longest, empty)] == [""] * 8
    assert 1 <= len({result.output for result in found}) <= 2
    assert own_pid() not in {result.output for result in found}
    assert (longest.output, empty.output) == (long, "")


def test_what_hangs_costs_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is up once all others have answered: they have not waited for it."""
    now, found = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr(rank_sources, "time", clock)
    looks = [RankSource(str(number), run) for number, run in enumerate([hang, own_pid, own_pid, own_pid])]
    for result in collect(looks, 2, 0.2):
        found.append(result)
        now[0] = float(len(found) == 3)
    assert [result.problem for result in found] == ["", "", "", "no report within 0.2 s"]


def test_what_dies_or_fails_costs_its_own_report() -> None:
    found = collected([die, own_pid, lambda: str(1 // 0), own_pid], jobs=1)
    why = "its examination ended without a report (status {})"
    assert [result.problem for result in found] == [why.format(9), "", why.format(256), ""]


def test_a_worker_ends_with_us() -> None:
    """It waits for the next look when we are killed, and others were forked later."""
    said, says = os.pipe()
    middle = os.fork()
    if middle == 0:
        _collect_and_hang(says)
    os.close(says)
    try:
        with os.fdopen(said) as answer:
            readable, _, _ = select.select([answer], [], [], PATIENCE)
            workers = [int(pid) for pid in answer.readline().split()] if readable else []
        assert len(workers) == 2
        os.kill(middle, signal.SIGKILL)
        os.waitpid(middle, 0)
        wait_until(lambda: not any(map(procfs.alive, workers)), "both workers have ended")
    finally:
        os.killpg(middle, signal.SIGKILL)  # the one that hangs, and where something failed all of them


def _collect_and_hang(says: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        looks = [RankSource("", own_pid), RankSource("", own_pid), RankSource("", hang)]
        pids = (result.output for result in collect(looks, 3, 60.0))
        os.write(says, f"{next(pids)} {next(pids)}\n".encode())
        time.sleep(FOREVER)
    finally:
        os._exit(1)


def report(rank: int, enqueued: int, waits: bool, pid: int = 0) -> RankReport:
    wait = CollectiveWait("all_reduce", enqueued, "default_pg", enqueued, enqueued - 1) if waits else None
    issued = Issued(enqueued, "all_reduce", is_pending=waits)
    group = GroupState("0", "default_pg", 2, "0-1", enqueued, enqueued - waits, (issued,))
    kind = "waiting-external" if waits else "idle"
    return RankReport(rank, "node1", pid or 100 + rank, "job", 2, "2.13.0", kind, "", wait=wait, groups=(group,))


def test_a_rank_that_waits_elsewhere_by_now_runs_and_what_moved_before_its_report_came_has_moved() -> None:
    """The last one was seen in #18, went on to #25 while its report was written, and sleeps there since."""
    waiting, late = report(0, 18, True), report(1, 17, False)
    assert combine_reports(waiting, waiting) == waiting
    assert judge(rows([waiting, late])).verdict.kind.value == "late-rank"
    found = judge(rows([combine_reports(waiting, report(0, 25, True)), late]))
    assert (found.verdict.kind.value, found.collectives) == ("all-busy", ())
    first, second = report(0, 25, True), report(1, 18, True)
    looks = ([first, second], [first, late], [first, first], [report(0, 18, False), late])
    assert [is_settled(each) for each in looks] == [False, False, True, True]
    assert judge(rows([first, second])).verdict.kind.value == "mismatched-collective"
    later = combine_reports(second, report(1, 25, True))
    assert judge(rows([first, later])).verdict.kind.value in ("all-busy", "all-idle")


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
        idle = report(1, 18, False, os.getpid())  # it waits for nobody: it is not asked
        progress = ProgressOfRanks([os.getpid()])
        wait_until(lambda: progress.that_ran([of_main]), "the main thread has run")
        assert progress.that_ran([of_main, of_thread, of_new_one, idle]) == [of_main, of_new_one]
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


@pytest.mark.parametrize(
    ("counts", "line", "waits_for"),
    [([0, 0], "a.py:3 (f)", 1), ([5, 0], "a.py:3 (f)", None), ([0, 0], "a.py:4 (f)", None), (None, "a.py:3 (f)", -1)],
)
def test_a_call_of_mpi_is_proven_by_what_the_kernel_counts(
    counts: list[int] | None, line: str, waits_for: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a rank only if no return was counted and it is at the same line; -1: for an unknown one."""

    class Counter:
        def __init__(self, tid: int, _address: int) -> None:
            if counts is None:
                raise PermissionError
            self.number = counts[tid - 100]

        def count(self) -> int:
            return self.number

        def close(self) -> None:
            self.number = -1

    def waiting(rank: int, line: str) -> RankReport:
        wait = CollectiveWait("MPI_Send", group="MPI_COMM_WORLD", peer=1 - rank, returns_to=0x7F0000)
        return report(rank, 1, False)._replace(wait=wait, path=(line,), groups=())

    monkeypatch.setattr(rank_sources, "ReturnCounter", Counter)
    monkeypatch.setattr(rank_sources, "_WATCHED", 0)
    monkeypatch.setattr(rank_sources, "_process_source", lambda pid: pid)
    monkeypatch.setattr(rank_sources, "_examine", lambda *_: [waiting(0, line), waiting(1, "a.py:3 (f)")])
    first, second = rank_sources._still_in_mpi([waiting(0, "a.py:3 (f)"), waiting(1, "a.py:3 (f)")], SimpleNamespace())
    expected = {None: (None, True), -1: (None, False), 1: (1, False)}[waits_for]
    assert (first.wait.peer if first.wait else None, first.running) == expected
    assert (first.wait is None) == (waits_for is None)
    assert second.wait
    assert second.wait.peer == (None if counts is None else 0)


def test_counters_are_closed_if_the_second_look_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    class Counter(SimpleNamespace):
        def __init__(self, tid: int, _address: int) -> None:
            super().__init__(close=lambda: closed.append(tid))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    wait = CollectiveWait("MPI_Send", group="MPI_COMM_WORLD", peer=1, returns_to=0x7F0000)
    reports = [report(rank, 1, False)._replace(wait=wait) for rank in range(2)]
    monkeypatch.setattr(rank_sources, "ReturnCounter", Counter)
    monkeypatch.setattr(rank_sources, "_WATCHED", 0)
    monkeypatch.setattr(rank_sources, "_examine", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rank_sources._still_in_mpi(reports, SimpleNamespace())
    assert sorted(closed) == [each.pid for each in reports]


def test_returns_of_a_traced_thread_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(return_counter, "foreign_tracer", lambda _tid: 7)
    with pytest.raises(OSError, match="is traced by process 7"):
        return_counter.ReturnCounter(os.getpid(), 0x1000)
