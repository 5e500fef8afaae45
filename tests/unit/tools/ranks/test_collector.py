"""Workers of scripts/dispatch ranks: each serves many looks, and what hangs or dies costs one of them."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from gdbext.tools.ranks import collector
from gdbext.tools.ranks.collector import RankSource, Result, collect
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
    found = collected([own_pid] * 6)
    assert [result.problem for result in found] == [""] * 6
    assert 1 <= len({result.output for result in found}) <= 2
    assert own_pid() not in {result.output for result in found}


def test_answers_may_be_longer_than_a_pipe_holds_or_empty() -> None:
    assert [result.output for result in collected([lambda: "ä" * 300_000, lambda: ""])] == ["ä" * 300_000, ""]


def test_what_hangs_costs_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is up once all others have answered: they have not waited for it."""
    now, found = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr(collector, "time", clock)
    looks = [RankSource(str(number), run) for number, run in enumerate([hang, own_pid, own_pid, own_pid])]
    for result in collect(looks, 2, 0.2):
        found.append(result)
        now[0] = float(len(found) == 3)
    assert [result.problem for result in found] == ["", "", "", "no report within 0.2 s"]


def test_what_dies_or_fails_costs_its_own_report() -> None:
    found = collected([die, own_pid, lambda: str(1 // 0), own_pid], jobs=1)
    why = "the look at it ended without a report (status {})"
    assert [result.problem for result in found] == [why.format(9), "", why.format(256), ""]


def test_no_worker_is_left() -> None:
    looks = [RankSource("one", own_pid), RankSource("two", hang)]
    results = collect(looks, 2, 60.0)
    pid = next(results).output
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    assert pid in children.read_text().split()
    results.close()  # type: ignore[attr-defined]
    assert pid not in children.read_text().split()


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
    """In a process group of its own: write the pids of two workers, while a third hangs."""
    try:
        os.setpgid(0, 0)
        looks = [RankSource("", own_pid), RankSource("", own_pid), RankSource("", hang)]
        pids = (result.output for result in collect(looks, 3, 60.0))
        os.write(says, f"{next(pids)} {next(pids)}\n".encode())
        time.sleep(FOREVER)
    finally:
        os._exit(1)
