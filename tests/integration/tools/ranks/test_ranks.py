"""``scripts/dispatch ranks`` and dispatch-collectives on jobs that hang: running, as cores, on other machines."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gdbext.tools import table
from support.installed import slurm, sshd
from support.installed.machine import need_module
from support.programs import harness, procfs
from support.programs.endless_words import endless
from support.programs.harness import Inferior
from support.source import contract_schema

pytestmark = pytest.mark.torch

AT_STORE = {
    "new_group_of_two": ("late-rank", "1", "rank 1's address for gloo, in new_group of group 1 (ranks 0-1)"),
    "barrier_of_new_group": ("late-rank", "1", "wait for all of ranks 0-2 in the store's barrier, in new_group"),
    "rpc_names": ("late-rank", "1", "rank 0 waits for rank 1's address for gloo, in init_rpc"),
    "elastic_barrier": ("late-rank", "2", "ranks 0-1 wait for all of ranks 0-2 in the barrier 'save' of torchelastic"),
    "elastic_data": ("late-rank", "1", "0//data/1' of the store), and rank 1 has not arrived there"),
    "crossed_groups": ("mismatched-collective", "0-1", "rank 0 waits for rank 1's address for gloo, in new_group"),
    "own_key": ("store-wait", "", "phase/0/1' of the store; which rank sets it is not known"),
}  # fmt: skip
"""Jobs with ranks that wait at the store: the verdict, the ranks at fault, and words of its sentence."""
CALLED = {
    "full_tensor": (0, "(log_weight), by full_tensor", "print(weight.full_tensor())"),
    "ddp_buffers": (1, "(validate), by DistributedDataParallel.forward (DDP's buffers)", "model(torch.ones(2, 4))"),
    "fsdp_unshard": (1, "(validate), by FSDP's unshard", "model(torch.ones(2, 4))"),
    "optimizer_step": (1, "(optimizer_step), by ZeroRedundancyOptimizer.step", "hang() if rank == 0 else optimizer"),
    "dcp_save": (0, "(dcp_save), by save (torch.distributed.checkpoint)", "dcp.save("),
    "late_sleep": (0, "(join)", "dist.all_reduce(torch.ones(8, 2))"),
}
"""Jobs whose collective a library issues: the rank that waits, what is said of its call, and the text of its line."""
SCENARIOS = ("late_sleep", "dead", "awaited_transfers", "saving_thread", "lazy_pair", *AT_STORE, *list(CALLED)[:-1])
ROOM = {"GDBEXT_ROOM": "-" * 100}
TIMES = ("time_discovered_started_ns", "time_discovered_completed_ns")
"""The flight recorder's JSON has 0 where its pickled dictionary has None."""


@pytest.fixture(scope="module")
def job() -> Iterator[Inferior]:
    """All ranks of these jobs, forked by one process; ``truth["pids"]`` has them by scenario and rank."""
    with harness.started("job", *SCENARIOS, env=ROOM) as inferior:
        yield inferior


def dispatch(*words: object, status: int = 0, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    outcome = harness.run([harness.DISPATCH, *map(str, words), "--json"], env=env)
    assert outcome.status == status, outcome
    contract_schema.check(outcome.document)
    return outcome.document


def ranks(*words: object, **options: Any) -> dict[str, Any]:
    return dispatch("ranks", *words, **options)


def collectives(pid: int, *words: object) -> Any:
    return dispatch("--debugger", "none", "-p", pid, "dispatch-collectives", *words)["collectives"]


def blamed(document: dict[str, Any]) -> tuple[str, str]:
    return document["verdict"]["kind"], document["verdict"]["ranks"]


@pytest.mark.parametrize(
    ("scenario", "verdict", "reason"),
    [
        ("late_sleep", ("late-rank", "1"), "never enqueued #4 all_reduce float32[8, 2] of group default_pg"),
        ("dead", ("dead-rank", "1"), "zombie"),
        ("saving_thread", ("late-rank", "1"), "never enqueued #4 all_gather float32[2] of group default_pg"),
        ("awaited_transfers", ("mismatched-collective", "0-2"), "(tag 8); rank 2 waits in send to rank 0 (tag 3)"),
        ("lazy_pair", ("late-rank", "2"), "rank 0 waits for rank 2 of 3 in all_reduce"),
        *((name, found[:2], found[2]) for name, found in AT_STORE.items()),
    ],
)
def test_the_job_of_any_of_its_processes(job: Inferior, scenario: str, verdict: tuple[str, str], reason: str) -> None:
    """None is traced or stopped afterwards. Other ways to hang are recorded: tests/unit/tools/ranks/test_judge.py."""
    pids = job.truth["pids"][scenario]
    document = ranks("-p", pids[0])
    assert blamed(document) == verdict, document["verdict"]
    assert reason in document["verdict"]["summary"]
    there = {rank: pid for rank, pid in enumerate(pids) if (scenario, rank) != ("dead", 1)}
    assert {each["rank"]: each["pid"] for each in document["reports"]} == there
    for pid in there.values():
        assert procfs.status(pid)["TracerPid"] == "0"
        assert procfs.status(pid)["State"][0] not in "tT"


@pytest.mark.parametrize("scenario", CALLED)
def test_the_line_of_each_side_and_what_the_program_called(job: Inferior, scenario: str) -> None:
    rank, called, source = CALLED[scenario]
    pids = job.truth["pids"][scenario]
    document = ranks("-p", pids[0])
    kind, late = blamed(document)
    assert (kind, late) == ("late-rank", str(1 - rank))
    report = document["reports"][rank]
    file, _, line = report["line"].partition(" ")[0].rpartition(":")
    assert file == "inferiors/job.py"
    assert (harness.INFERIORS / "job.py").read_text().splitlines()[int(line) - 1].strip().startswith(source)
    assert f"called it at {file}:{line} {called}." in document["verdict"]["summary"]
    text = harness.run([harness.DISPATCH, "ranks", "-p", str(pids[0])]).stdout
    own = [each["line"] for each in document["reports"]]
    block = text.partition("Lines of the program")[2].partition("\n\n")[0]
    assert all(each in block for each in own)
    tree = text.partition("Where they are")[2]
    for each in own:
        place, _, function = each.partition(" (")
        assert f"{function[:-1]} ({place})" in tree


@pytest.mark.parametrize(("scenario", "owed_by"), [("new_group_of_two", "1"), ("barrier_of_new_group", "0-2")])
def test_who_owes_a_key_of_the_store_is_known_from_cores(
    job: Inferior, scenario: str, owed_by: str, tmp_path: Path
) -> None:
    """Only a member of the group can be late: rank 2 of new_group_of_two has called new_group and is none."""
    for rank, pid in enumerate(job.truth["pids"][scenario]):
        harness.take_core(pid, tmp_path / f"core.{rank}")
    document = ranks("--cores", tmp_path)
    shutil.rmtree(tmp_path)
    assert blamed(document) == AT_STORE[scenario][:2]
    assert AT_STORE[scenario][2] in document["verdict"]["summary"]
    assert document["reports"][0]["wait"]["owed_by"] == owed_by


def test_calls_that_nobody_is_left_to_answer() -> None:
    """A job of its own, and a short one: the threads of torch.distributed.rpc poll, half a CPU in each rank."""
    with harness.started("job", "nested_calls", env=ROOM) as running:
        document = ranks("-p", running.truth["pids"]["nested_calls"][0])
    assert blamed(document) == ("mismatched-collective", "0-1")
    assert "no rank is left to answer: rank 0 waits in rpc_async to rank 1" in document["verdict"]["summary"]


def test_nobody_is_late_in_a_job_that_runs_and_none_gives_up() -> None:
    """One rank after the other is looked at, and each look shows a later operation. None comes near the time after
    which its collectives fail (tests/inferiors/job.py)."""
    with harness.started("job", "moving", env=ROOM) as running:
        pids = running.truth["pids"]["moving"]
        reports = [ranks("-p", pids[0]) for _ in range(3)]
        before = steps(running)
        harness.wait_until(lambda: all(now > then + 10 for now, then in zip(steps(running), before)), "it continues")
        assert all(map(procfs.alive, pids))
    assert {report["verdict"]["kind"] for report in reports} <= {"all-busy", "all-idle"}, reports
    assert [len(report["reports"]) for report in reports] == [2] * 3


def steps(running: Inferior) -> list[int]:
    return [int((running.folder / f"moving.{rank}.steps").read_bytes() or 0) for rank in range(2)]


def test_the_launcher_and_cores_stand_for_their_ranks(job: Inferior, tmp_path: Path) -> None:
    pids = job.truth["pids"]["late_sleep"]
    live = ranks("-p", int(procfs.status(pids[0])["PPid"]))
    assert live["ranks"] == "0-3"
    for rank, pid in enumerate(pids):
        harness.take_core(pid, tmp_path / f"core.{rank}")
    (tmp_path / "core.none").write_bytes(b"\x7fELF" + bytes(12) + b"\4\0" + bytes(100))
    dead = ranks("--cores", tmp_path)
    shutil.rmtree(tmp_path)
    assert [Path(each["where"]).name for each in dead["unreached"]] == ["core.none"]
    for name in ("job", "size", "ranks", "missing", "collectives", "tree"):
        assert dead[name] == live[name], name
    assert blamed(dead) == ("late-rank", "1")


@pytest.mark.alone  # --node is about one job of the machine: another test's may be larger
@pytest.mark.parametrize("user", [None, 65534])
def test_a_process_with_an_endless_environment_costs_nobody_else_the_report(job: Inferior, user: int | None) -> None:
    """Its user's jobs say that it may be one of them; other users' jobs do not know it."""
    if user is not None and os.getuid() != 0:
        pytest.skip("only root starts a process of another user")
    pids = job.truth["pids"]["late_sleep"]
    why = "its environment is longer than execve(2) allows, so its job and rank are unknown"
    with endless(user=user) as stranger:
        for words in (("-p", pids[0]), ("--node",)):
            document = ranks(*words)
            assert {*pids} <= {each["pid"] for each in document["reports"]}
            told = [each["reason"] for each in document["unreached"] if each["where"] == f"pid {stranger}"]
            assert told == ([why] if user is None else [])


@pytest.mark.parametrize(("scenario", "said"), [("late_sleep", "missing ranks: {1}"), ("awaited_transfers", "")])
def test_every_entry_is_the_recorder_s_own(job: Inferior, scenario: str, said: str, tmp_path: Path) -> None:
    """Each rank's own flight recorder wrote them down. PyTorch's analyser reads our files."""
    for rank, pid in enumerate(job.truth["pids"][scenario]):
        file = tmp_path / f"fr_{rank}"
        found = collectives(pid, "--output", file)
        own = json.loads((job.folder / f"{scenario}.{rank}.json").read_text())["dump"]
        ours = pickle.loads(file.read_bytes())
        assert [plain(entry) for entry in ours["entries"]] == own["entries"]
        status = {number: {name: int(value[name]) for name in value} for number, value in own["pg_status"].items()}
        assert ours["pg_status"] == status
        assert found["source"] == "flight-recorder"
        for group in found["groups"]:
            entries = [entry for entry in own["entries"] if entry["process_group"][0] == group["name"]]
            pending = [entry["collective_seq_id"] for entry in entries if not entry["retired"]]
            assert [each["seq"] for each in group["pending"]] == pending
    if said:
        words = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "--prefix", "fr_", tmp_path]
        done = harness.run(words)
        assert said in done.stdout + done.stderr


def plain(entry: dict[str, Any]) -> dict[str, Any]:
    without = {name: value for name, value in entry.items() if name != "frames"}
    return {**without, "process_group": list(entry["process_group"]), **{name: entry[name] or 0 for name in TIMES}}


def test_a_pending_collective_with_the_line_that_issued_it(job: Inferior) -> None:
    group = collectives(job.truth["pids"]["late_sleep"][2])["groups"][0]
    assert (group["backend"], group["rank"], group["size"], group["ranks"]) == ("gloo", 2, 4, [0, 1, 2, 3])
    assert group["last_enqueued"] == 4
    assert group["store"].startswith("tcp://127.0.0.1:")
    pending = group["pending"][0]
    assert (pending["op"], pending["sizes"], pending["dtypes"]) == ("all_reduce", [[8, 2]], ["float32"])
    assert 0 < pending["age_ms"] < 600_000
    lines = (harness.INFERIORS / "job.py").read_text().splitlines()
    assert Path(pending["file"]).name == "job.py"
    assert "dist.all_reduce(torch.ones(8, 2))" in lines[pending["line"] - 1]


def on_hosts(*words: str) -> dict[str, Any]:
    need_module("ClusterShell")
    words = ("--hosts", *words, "--python", sys.executable, "--json")
    document = json.loads(table.tool_of(table.program("ranks")).main(words, lambda _: 0, color=False).output)
    contract_schema.check(document)
    return dict(document)


def test_clustershell_asks_every_node_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exec worker runs the archive that travels, as another machine would."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    document = on_hosts("node[1-3]", "--worker", "exec", "--job", "no-such-job")
    assert [each["where"] for each in document["unreached"]] == ["node1", "node2", "node3"]
    assert all("no-such-job" in each["reason"] for each in document["unreached"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sshd
def test_ranks_of_machines_that_ssh_reaches(job: Inferior, tmp_path: Path) -> None:
    """Three addresses of this machine: one answers, one takes the call and says nothing, of one nobody listens."""
    pids = job.truth["pids"]["late_sleep"]
    lines = Path(f"/proc/{pids[0]}/environ").read_text().split("\0")
    environ = dict(line.split("=", 1) for line in lines if "=" in line)
    name = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    with sshd.running(tmp_path, ["127.0.0.1"]) as ssh_options, socket.socket() as silent:
        silent.bind(("127.0.0.2", int(ssh_options.partition("-p ")[2].split()[0])))
        silent.listen()
        (tmp_path / "silent").write_text("Host 127.0.0.2\nConnectTimeout 2\n")
        options = ssh_options.replace("-F /dev/null", f"-F {tmp_path}/silent")
        document = on_hosts("127.0.0.[1-3]", "--ssh-options", options, "--job", name)
    assert document["ranks"] == "0-3"
    assert [each["pid"] for each in document["reports"]] == pids
    assert blamed(document) == ("late-rank", "1")
    reasons = " ".join(sorted(f"{each['where']}: {each['reason']}" for each in document["unreached"]))
    assert re.fullmatch(r"127\.0\.0\.2: .*timed out.* 127\.0\.0\.3: .*Connection refused.*", reasons, re.DOTALL), (
        reasons
    )


@pytest.mark.slurm
def test_ranks_of_a_job_of_slurm_s(tmp_path: Path) -> None:
    """The task that srun started is a launcher of ranks, as ``srun torchrun`` is: it has rank 0's number from Slurm."""
    with slurm.cluster(tmp_path) as environment:

        def ranks_of(number: str, status: int = 0) -> dict[str, Any]:
            return ranks("--slurm", number, "--python", sys.executable, status=status, env=environment)

        with harness.started("job", "late_sleep", command=["srun", "-n1"], env={**environment, **ROOM}) as job:
            document = ranks_of("1")
            assert document["job"] == "slurm 1.0"
            assert [each["pid"] for each in document["reports"]] == job.truth["pids"]["late_sleep"]
            assert blamed(document) == ("late-rank", "1")
            assert document["unreached"] == []
            (other_step,) = ranks_of("1.7", status=1)["unreached"]
            assert other_step["reason"] == "there is no rank on this machine of job slurm 1.7"
            (no_job,) = ranks_of("77", status=1)["unreached"]
            assert no_job["where"] == "srun"
            assert "Invalid job id" in no_job["reason"]
