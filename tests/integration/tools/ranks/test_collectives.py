"""dispatch-collectives against what each rank's own flight recorder wrote down, and PyTorch's analyser on our files."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.programs import harness
from support.programs.harness import Inferior
from support.source import contract_schema

pytestmark = pytest.mark.torch

TIMES = ("time_discovered_started_ns", "time_discovered_completed_ns")
"""The recorder's JSON has 0 where its pickled dictionary has None."""


def ranks(job: Inferior, scenario: str) -> list[int]:
    return list(job.truth["pids"][scenario])


def own_account(job: Inferior, scenario: str, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.folder / f"{scenario}.{rank}.json").read_text())["dump"]
    return found


def look(pid: int, *words: str, way: str = "none") -> dict[str, Any]:
    return document("-p", pid, "--debugger", way, *words)


def document(*words: object) -> dict[str, Any]:
    outcome = harness.run([harness.DISPATCH, *map(str, words), "--json"])
    assert outcome.status == 0, outcome
    found: dict[str, Any] = outcome.document
    contract_schema.check(found)
    return found


@pytest.mark.parametrize("scenario", ["late_sleep", "other_order", "crossing", "pipeline", "late_gil"])
def test_every_entry_is_the_recorder_s_own(job: Inferior, scenario: str, tmp_path: Path) -> None:
    for rank, pid in enumerate(ranks(job, scenario)):
        file = tmp_path / f"fr_{rank}"
        report = look(pid, "dispatch-collectives", "--output", str(file))
        own, ours = own_account(job, scenario, rank), pickle.loads(file.read_bytes())
        assert [plain(entry) for entry in ours["entries"]] == own["entries"]
        assert ours["pg_status"] == {
            number: {name: int(value) for name, value in status.items()} for number, status in own["pg_status"].items()
        }
        assert report["collectives"]["source"] == "flight-recorder"
        for group in report["collectives"]["groups"]:
            issued = [entry for entry in own["entries"] if entry["process_group"][0] == group["name"]]
            assert [each["seq"] for each in group["pending"]] == [
                entry["collective_seq_id"] for entry in issued if not entry["retired"]
            ]


def plain(entry: dict[str, Any]) -> dict[str, Any]:
    """As the recorder's JSON has it."""
    without = {name: value for name, value in entry.items() if name != "frames"}
    return {**without, "process_group": list(entry["process_group"]), **{name: entry[name] or 0 for name in TIMES}}


def test_a_pending_collective_with_the_line_that_issued_it(job: Inferior) -> None:
    pid = ranks(job, "late_sleep")[2]
    group = look(pid, "dispatch-collectives")["collectives"]["groups"][0]
    assert (group["backend"], group["rank"], group["size"], group["ranks"]) == ("gloo", 2, 4, [0, 1, 2, 3])
    assert group["last_enqueued"] == 4
    assert group["store"].startswith("tcp://127.0.0.1:")
    pending = group["pending"][0]
    assert (pending["op"], pending["sizes"], pending["dtypes"]) == ("all_reduce", [[8, 2]], ["float32"])
    assert 0 < pending["age_ms"] < 600_000
    lines = (Path(__file__).parents[3] / "inferiors" / "job.py").read_text().splitlines()
    assert Path(pending["file"]).name == "job.py"
    assert "dist.all_reduce(torch.ones(8, 2))" in lines[pending["line"] - 1]


def test_the_same_through_gdb(job: Inferior) -> None:
    pid = ranks(job, "crossing")[0]
    alone, through_gdb = (look(pid, "dispatch-collectives", way=way)["collectives"] for way in ("none", "gdb"))
    for found in (alone, through_gdb):
        for group in found["groups"]:
            for each in (*group["pending"], *group["recent"]):
                each["age_ms"] = 0
    assert alone == through_gdb


def test_the_analyser_of_pytorch_runs_on_our_files(job: Inferior, tmp_path: Path) -> None:
    for scenario, said in (("other_order", "COLLECTIVE_TYPE_MISMATCH"), ("late_sleep", "missing ranks: {1}")):
        folder = tmp_path / scenario
        folder.mkdir()
        for rank, pid in enumerate(ranks(job, scenario)):
            look(pid, "dispatch-collectives", "--output", str(folder / f"fr_{rank}"))
        words = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "--prefix", "fr_", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=harness.PATIENCE, check=False)
        assert said in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("scenario", "rank", "phrase"),
    [
        ("late_sleep", 0, "waits in #4 all_reduce (enqueued 4"),
        ("crossing", 1, "waits in #1 all_reduce (enqueued 1"),
        ("pipeline", 1, "waits in recv from rank 0 (tag 7)"),
        ("pipeline", 2, "waits in recv from rank 1"),
    ],
)
def test_diagnose_names_what_a_rank_waits_in(job: Inferior, scenario: str, rank: int, phrase: str) -> None:
    report = look(ranks(job, scenario)[rank])
    assert report["verdict"]["kind"] == "waiting-external"
    assert phrase in report["verdict"]["summary"]
    assert report["collectives"]["identity"]["rank"] == rank


def test_a_core_says_the_same(job: Inferior, cores: Path) -> None:
    live = look(ranks(job, "late_sleep")[0], "dispatch-collectives")["collectives"]
    core = document("-c", cores / "core.0", "--debugger", "none", "dispatch-collectives")["collectives"]
    for left, right in zip(live["groups"], core["groups"]):
        for name in ("name", "backend", "rank", "ranks", "last_enqueued", "last_completed", "store"):
            assert left[name] == right[name]
        assert [each["seq"] for each in left["pending"]] == [each["seq"] for each in right["pending"]]
        assert all(each["age_ms"] is None for each in right["pending"])
