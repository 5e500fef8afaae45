"""Processes that quotas, pinning and limits hold up: what holds them up is named, with its figures."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.programs.harness import DISPATCH, Inferior, run, started, wait_until


def diagnose(target: Inferior) -> dict:
    report: dict = target.dispatch("dispatch-diagnose", debugger="none").document
    return report


@contextlib.contextmanager
def group(controller: str, pid: int, **values: str) -> Iterator[Path]:
    base = Path("/sys/fs/cgroup", controller)
    folder = base / f"gdbext-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of {controller} can be made here: {error}")
    try:
        for name, value in values.items():
            file = folder / f"{controller}.{name}"
            if not file.exists():
                pytest.skip(f"the group has no {file.name}")
            file.write_text(value)
        (folder / "cgroup.procs").write_text(str(pid))
        yield folder
    finally:
        (base / "cgroup.procs").write_text(str(pid))
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), "the group is empty")
        folder.rmdir()


def test_a_quota_that_is_used_up_and_one_that_is_not(tmp_path: Path) -> None:
    with started("surroundings", "inside") as target, group("cpu", target.pid, cfs_quota_us="2000") as folder:
        wait_until(lambda: _three_periods(folder) >= 3, "the quota is used up")
        recording = tmp_path / "quota.rec"
        recorded = run([DISPATCH, "-p", str(target.pid), "--record", str(recording), "--json"]).document
        replayed = run([DISPATCH, "-r", str(recording), "--json"]).document
        for report in (recorded, replayed):
            assert report["verdict"]["kind"] == "starved", report["verdict"]
            assert str(folder) in report["verdict"]["summary"]
            quota = report["machine"]["cgroup"]["quota"]
            assert (quota["processors"], quota["period_ms"]) == (0.02, 100)
            assert quota["throttled"] >= 2
            assert report["explanations"][0]["kind"] == "quota"
            assert report["explanations"][0]["proven"]
            told = [line for line in report["machine"]["files"] if "a container's" in line]
            assert bool(told) == target.truth["inside"]
        assert recorded["machine"] == replayed["machine"]
        (folder / "cpu.cfs_quota_us").write_text("800000")
        wait_until(lambda: _three_periods(folder) == 0, "the quota is not reached any more")
        assert "quota" not in [each["kind"] for each in diagnose(target).get("explanations", ())]


def _stat(folder: Path) -> dict[str, int]:
    return {name: int(value) for name, value in map(str.split, (folder / "cpu.stat").read_text().splitlines())}


def _three_periods(folder: Path) -> int:
    """In how many of the next three periods, or a few more, the group used its quota up."""
    before = _stat(folder)
    wait_until(lambda: _stat(folder)["nr_periods"] >= before["nr_periods"] + 3, "three periods pass")
    return _stat(folder)["nr_throttled"] - before["nr_throttled"]


def test_threads_on_one_processor() -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("this machine has one processor")
    with started("surroundings", "pinned") as target:
        report = diagnose(target)
        assert report["verdict"]["kind"] == "starved", report["verdict"]
        assert "only on CPU" in report["verdict"]["summary"]
        assert len(report["machine"]["affinity"]) == 1
        turns = [each for each in report["machine"]["threads"] if each["delayed_ms"] is not None]
        assert len(turns) >= 3


def test_memory_that_the_group_does_not_have(tmp_path: Path) -> None:
    """Pages of a file are taken away and read again; where its OOM killer is off, who wants more waits."""
    path = tmp_path / "pages"
    path.write_bytes(os.urandom(64 << 20))
    os.sync()
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # pages belong to who reads them first
    with (
        started("surroundings", "rereads", str(path)) as target,
        group("memory", target.pid, limit_in_bytes=str(32 << 20)) as folder,
    ):
        (tmp_path / "pages.go").touch()
        seen = _verdict_with(target, "memory is at its limit")
        assert seen["kind"] in ("slow", "starved")
        assert str(folder) in seen["summary"]
        (folder / "memory.oom_control").write_text("1")
        try:
            (tmp_path / "pages.more").touch()
            seen = _verdict_with(target, "has its OOM killer disabled")  # and what to do is about that group
            assert "memory.oom_control" in target.dispatch("dispatch-diagnose", debugger="none", json=False).stdout
            assert seen["kind"] == "kernel-wait"
            assert str(folder) in seen["summary"]
        finally:
            (folder / "memory.limit_in_bytes").write_text(str(1 << 40))  # else it cannot leave
            os.kill(target.pid, signal.SIGSTOP)


def _verdict_with(target: Inferior, words: str) -> dict:

    def found() -> dict | None:
        seen: dict = diagnose(target)["verdict"]
        return seen if words in seen["summary"] else None

    verdict: dict = wait_until(found, f"the verdict says: {words}")
    return verdict


def test_a_team_that_is_larger_than_the_machine() -> None:
    with started("surroundings", "team") as target:

        def oversubscribed() -> dict | None:  # between two regions nobody wants to run
            report = diagnose(target)
            kinds = [each["kind"] for each in report.get("explanations", ()) if each["proven"]]
            return report if "oversubscription" in kinds else None

        assert wait_until(oversubscribed, "the team is found too large")["verdict"]["kind"] == "slow"


def test_numbers_that_are_too_small_to_be_normal() -> None:
    with started("surroundings", "subnormals") as target:

        def slowed() -> dict | None:  # the operator ends and begins again
            words = ("--samples", "5", "--interval", "0.05")
            report = target.dispatch("dispatch-diagnose", *words, debugger="none").document
            return report if "100% of the numbers in self of aten::mul" in report["verdict"]["summary"] else None

        report = wait_until(slowed, "most samples fall into the operator")
        assert report["verdict"]["kind"] == "slow"
        assert diagnose(target)["verdict"]["kind"] != "slow", "one sample does not show where the time goes"
        kinds = [each["kind"] for each in report["explanations"]]
        assert ("one-thread" in kinds) == (len(report["machine"]["affinity"]) > 1), kinds


def test_operators_that_are_not_slow_on_small_numbers() -> None:
    with started("surroundings", "subnormals", "relu") as target:
        words = ("--samples", "4", "--interval", "0.05")
        report = target.dispatch("dispatch-diagnose", *words, debugger="none").document
    assert "subnormals" not in [each["kind"] for each in report["explanations"]]


def test_garbage_that_is_collected_all_the_time() -> None:
    with started("surroundings", "collects", python="3.10") as target:
        samples = ("--samples", "3", "--interval", "0.2")
        live = target.dispatch("dispatch-diagnose", *samples, debugger="none").document
        core = target.dispatch("dispatch-diagnose", debugger="none", core=True).document
    (found,) = [each for each in live["explanations"] if each["kind"] == "garbage-collection"]
    assert "generation 2" in found["summary"]
    assert [text for text in found["for"] if "in 3 of 3 samples" in text], found
    assert [text for text in found["for"] if "of generation 2 ended" in text], found
    assert live["samples"]["threads"][0]["progress"] == "moved"
    (found,) = core["explanations"]
    assert int(found["for"][0].split()[-2].replace(",", "")) >= target.truth["objects"]
    assert core["machine"]["unread"]


def test_a_database_that_another_process_has_locked_and_then_this_one(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    ours = sqlite3.connect(path, isolation_level=None)
    ours.execute("create table t (x)")
    ours.execute("begin exclusive")
    with started("surroundings", "database", str(path)) as target:
        wait_until(lambda: "data.db" in diagnose(target)["verdict"]["summary"], "it waits")
        report = diagnose(target)
        assert report["verdict"]["kind"] == "waiting-external", report["verdict"]
        assert f"locked by process {os.getpid()} " in report["verdict"]["summary"]
        assert report["threads"][0]["wait"]["peer"]["kind"] == "file-lock"
        ours.execute("commit")
        own = "data.db, held by another connection of this process"
        wait_until(lambda: own in diagnose(target)["verdict"]["summary"], "it waits for itself")
        assert list(ours.execute("select x from t")) == [(1,)]


def test_no_more_processes_may_be_started() -> None:
    with started("surroundings", "tasks") as target, group("pids", target.pid, max="1"):
        verdict = _verdict_with(target, "is limited to 1 processes and threads and has 1")
        assert verdict["kind"] == "starved", verdict
