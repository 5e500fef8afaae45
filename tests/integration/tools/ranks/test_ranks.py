"""scripts/dispatch ranks on jobs that hang: running, as cores, and beside what is no rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.programs import harness, procfs
from support.programs.endless_words import endless
from support.programs.harness import Inferior
from support.source import contract_schema

pytestmark = pytest.mark.torch

IMPATIENT_MS = 5000
"""After which a collective of the job that runs fails (tests/inferiors/job.py)."""


def ranks(*words: object, status: int = 0) -> dict[str, Any]:
    outcome = harness.run([harness.DISPATCH, "ranks", *map(str, words), "--json"])
    assert outcome.status == status, outcome
    found: dict[str, Any] = json.loads(outcome.stdout)
    contract_schema.check(found)
    return found


@pytest.mark.parametrize(
    ("scenario", "kind", "blamed", "reason"),
    [
        ("late_sleep", "late-rank", "1", "never enqueued #4 all_reduce float32[8, 2] of group default_pg"),
        ("late_gil", "late-rank", "1", "waits for the GIL, which gil-keeper"),
        ("other_order", "mismatched-collective", "1", "different operations"),
        ("crossing", "mismatched-collective", "0-1", "wait for each other"),
        ("dead", "dead-rank", "1", "zombie"),
        ("alone", "blocked", "0", "threading.RLock"),
        ("saving_thread", "late-rank", "1", "never enqueued #4 all_gather float32[2] of group default_pg"),
        ("awaited_transfers", "mismatched-collective", "0-2", "(tag 8); rank 2 waits in send to rank 0 (tag 3)"),
    ],
)
def test_the_job_of_any_of_its_processes(job: Inferior, scenario: str, kind: str, blamed: str, reason: str) -> None:
    check_job(job, scenario, kind, blamed, reason)


def test_calls_that_nobody_is_left_to_answer() -> None:
    """A job of its own, and a short one: the threads of torch.distributed.rpc poll, half a processor in each rank."""
    with harness.started("job", "nested_calls", env={"GDBEXT_ROOM": "-" * 100}) as running:
        reason = "nobody is left to answer: rank 0 waits in rpc_async to rank 1"
        check_job(running, "nested_calls", "mismatched-collective", "0-1", reason)


def check_job(job: Inferior, scenario: str, kind: str, blamed: str, reason: str) -> None:
    """The verdict of ``ranks`` on one of a job's processes."""
    pids = job.truth["pids"][scenario]
    document = ranks("-p", pids[0])
    assert (document["verdict"]["kind"], document["verdict"]["ranks"]) == (kind, blamed), document["verdict"]
    assert reason in document["verdict"]["summary"]
    looked_at = {each["rank"]: each["pid"] for each in document["reports"]}
    assert looked_at == {rank: pid for rank, pid in enumerate(pids) if (scenario, rank) != ("dead", 1)}


def test_the_launcher_stands_for_its_ranks(job: Inferior) -> None:
    pids = job.truth["pids"]["late_sleep"]
    launcher = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    assert ranks("-p", launcher)["ranks"] == "0-3"


def test_nobody_is_stopped_or_traced_afterwards(job: Inferior) -> None:
    pids = job.truth["pids"]["late_sleep"]
    ranks("-p", pids[0])
    for pid in pids:
        assert procfs.status(pid)["TracerPid"] == "0"
        assert procfs.status(pid)["State"][0] not in "tT"


def test_a_look_that_takes_too_long_costs_one_rank(job: Inferior) -> None:
    """Of a process that another one traces nothing can be said; the others are shown."""
    pids = job.truth["pids"]["other_order"]
    document = ranks("-p", pids[0], "--timeout", "0.001", status=1)
    assert sorted(each["where"] for each in document["unreached"]) == sorted(f"pid {pid}" for pid in pids)
    assert all("no report within" in each["reason"] for each in document["unreached"])
    harness.wait_until(lambda: all(procfs.status(pid)["TracerPid"] == "0" for pid in pids), "nobody traces them")
    assert ranks("-p", pids[0])["ranks"] == "0-1"


def test_nobody_is_late_in_a_job_that_runs_and_none_gives_up() -> None:
    """One rank after the other is looked at, and each look shows a later operation. Each stands still only for a look
    at itself, far shorter than the whole report takes: none comes near the time after which its collectives fail."""
    with harness.started("job", "moving", env={"GDBEXT_ROOM": "-" * 100}) as running:
        pids = running.truth["pids"]["moving"]
        reports = [ranks("-p", pids[0]) for _ in range(3)]
        before = steps(running)
        harness.wait_until(lambda: all(now > then + 10 for now, then in zip(steps(running), before)), "it goes on")
        assert all(map(procfs.alive, pids))
    assert {report["verdict"]["kind"] for report in reports} <= {"all-busy", "all-idle"}, reports
    pauses = [each["paused_ms"] for report in reports for each in report["reports"]]
    assert len(pauses) == 6
    assert 0 <= max(pauses) < IMPATIENT_MS / 4, pauses


def steps(running: Inferior) -> list[int]:
    """How far each rank of the job that runs has come."""
    return [int((running.folder / f"moving.{rank}.steps").read_bytes() or 0) for rank in range(2)]


def test_a_rank_that_has_not_loaded_torch_yet() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], env=environ, stdin=subprocess.PIPE) as early:
        document = ranks("-p", early.pid)
        early.kill()
    assert (document["ranks"], document["missing"], document["job"]) == ("1", "0", "127.0.0.1:1")


def test_a_process_that_is_no_rank() -> None:
    document = ranks("-p", os.getpid())
    assert document["unreached"] or document["reports"]


def test_cores_of_all_ranks_say_what_the_ranks_said(job: Inferior, cores: Path) -> None:
    """But for what only a live process has: its machine, user, waits and sleeps, how long it stood still."""
    live, dead = ranks("-p", job.truth["pids"]["late_sleep"][0]), ranks("--cores", cores)
    assert dead["unreached"] == []
    for name in ("job", "size", "ranks", "missing", "collectives", "tree", "notes"):
        assert dead[name] == live[name], name
    assert (dead["verdict"]["kind"], dead["verdict"]["ranks"]) == ("late-rank", "1")
    asked = "rank 1 of 4 never enqueued #4 all_reduce float32[8, 2] of group default_pg, on which ranks 0,2-3 wait"
    assert dead["verdict"]["summary"].startswith(asked)
    for left, right in zip(live["reports"], dead["reports"]):
        same = [name for name in left if name not in ("host", "summary", "kind", "paused_ms", "user")]
        assert {name: left[name] for name in same} == {name: right[name] for name in same}


def test_cores_without_the_files_of_their_processes(cores: Path, tmp_path: Path) -> None:
    """No library is there to follow the stacks with: nothing is claimed of what the ranks do."""
    document = ranks("--cores", cores, "--sysroot", tmp_path)
    assert (document["verdict"]["kind"], document["ranks"]) == ("all-idle", "0-3")
    assert document["verdict"]["summary"].startswith("What the ranks do cannot be read: rank 0: cannot open")
    assert ["--sysroot DIR" in note for note in document["notes"]] == [True]


def test_files_that_are_no_cores(tmp_path: Path) -> None:
    (tmp_path / "core.1").write_bytes(b"\x7fELF" + bytes(12) + b"\4\0" + bytes(100))
    (tmp_path / "notes.txt").write_text("not a core")
    document = ranks("--cores", tmp_path, status=1)
    assert [Path(each["where"]).name for each in document["unreached"]] == ["core.1"]


@pytest.mark.alone  # --node is about one job of the machine: another test's may be larger
@pytest.mark.parametrize("user", [None, 65534])
def test_a_process_with_an_endless_environment_costs_nobody_else_the_report(job: Inferior, user: int | None) -> None:
    """Its user's jobs say that it may be one of them; other users' jobs do not know it."""
    if user is not None and os.getuid() != 0:
        pytest.skip("only root starts a process of another user")
    pids = job.truth["pids"]["late_sleep"]
    with endless(user=user) as stranger:
        for words in (("-p", pids[0]), ("--node",)):
            document = ranks(*words)
            assert {*pids} <= {each["pid"] for each in document["reports"]}
            told = [each["reason"] for each in document["unreached"] if each["where"] == f"pid {stranger}"]
            assert told == (
                ["its environment is longer than any program is started with, so that its job and rank are not known"]
                if user is None
                else []
            )
