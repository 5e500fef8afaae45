"""``scripts/dispatch ranks`` on jobs of MPICH and Open MPI, which poll while they wait (tests/inferiors/mpi_job.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.installed import mpi
from support.programs import harness
from support.source import contract_schema


def ranks(*words: object) -> dict[str, Any]:
    outcome = harness.run([harness.DISPATCH, "ranks", *map(str, words), "--json"])
    assert outcome.status == 0, outcome
    contract_schema.check(outcome.document)
    return dict(outcome.document)


def named_wait(report: dict[str, Any]) -> tuple[str, int | None, int | None]:
    """(operation without its MPI_, peer, tag) as the inferior tells them."""
    wait = report["wait"] or {"op": "", "peer": None, "tag": None}
    return wait["op"].removeprefix("MPI_").lower(), wait["peer"], wait["tag"]


SCENARIOS = {
    "both_send": (2, "mismatched-collective", "0-1", "rank 0 waits in MPI_Send to rank 1 (tag 7) on MPI_COMM_WORLD"),
    "both_receive": (2, "mismatched-collective", "0-1", "none of which can be the first"),
    "late_barrier": (3, "late-rank", "1", "ranks 0,2 wait for rank 1 of 3 in MPI_Barrier"),
    "from_any": (2, "late-rank", "1", "rank 0 waits for rank 1 of 2 in MPI_Recv"),
    "pickled": (2, "late-rank", "1", "rank 0 waits in MPI_Mprobe from rank 1 (tag 4) on MPI_COMM_WORLD"),
    "crossed": (2, "mismatched-collective", "0-1", "rank 1 waits in MPI_Bcast (root 0) on MPI_COMM_WORLD"),
    "waits_for_request": (2, "all-idle", "", "rank 0 waits for others; none of these is known to hold them up"),
    "late_in_group": (3, "all-idle", "", "waits in MPI_Recv from rank 1 (tag 3) on communicator 0x"),
}
"""The number of ranks, the verdict, the ranks at fault, and words of its sentence."""


@pytest.mark.parametrize("implementation", mpi.LAUNCHERS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_jobs_that_hang(implementation: str, scenario: str, tmp_path: Path) -> None:
    size, kind, blamed, words = SCENARIOS[scenario]
    with mpi.job(implementation, scenario, size, tmp_path) as truths:
        pids = [truth["pid"] for truth in truths]

        def found() -> dict[str, Any] | None:
            """The report once all ranks are where they stay."""
            document = ranks("-p", pids[0])
            waits = [bool(report["wait"]) for report in document["reports"]]
            return document if waits == [bool(truth["op"]) for truth in truths] else None

        document = harness.wait_until(found, "all ranks are in their calls")
    assert [report["pid"] for report in document["reports"]] == pids
    assert [report["rank"] for report in document["reports"]] == [truth["rank"] for truth in truths]
    assert (document["verdict"]["kind"], document["verdict"]["ranks"]) == (kind, blamed), document["verdict"]
    assert words in document["verdict"]["summary"]
    for report, truth in zip(document["reports"], truths):
        if truth["op"] in ("send", "recv", "mprobe") and scenario != "late_in_group":
            assert named_wait(report) == (truth["op"], truth.get("peer"), truth["tag"])


@pytest.mark.parametrize("implementation", mpi.LAUNCHERS)
@pytest.mark.parametrize("scenario", ["moving", "exchanging", "stepping"])
def test_nobody_is_late_in_a_job_that_runs(implementation: str, scenario: str, tmp_path: Path) -> None:
    """Its ranks are in the same calls whenever one looks: that these return is counted."""
    with mpi.job(implementation, scenario, 2, tmp_path) as truths:
        documents = [ranks("-p", truths[1]["pid"]) for _ in range(3)]
    assert {document["verdict"]["kind"] for document in documents} <= {"all-busy", "all-idle"}, documents
    assert [document["ranks"] for document in documents] == ["0-1"] * 3


@pytest.mark.parametrize("implementation", mpi.LAUNCHERS)
def test_a_core_of_a_rank(implementation: str, tmp_path: Path) -> None:
    with mpi.job(implementation, "both_send", 2, tmp_path) as truths:
        harness.wait_until(lambda: len(ranks("-p", truths[0]["pid"])["verdict"]["ranks"]) == 3, "both send")
        for rank, truth in enumerate(truths):
            harness.take_core(truth["pid"], tmp_path / f"core.{rank}")
    document = ranks("--cores", tmp_path / "core.0", tmp_path / "core.1")
    for rank in range(2):
        (tmp_path / f"core.{rank}").unlink()
    assert [named_wait(report) for report in document["reports"]] == [("send", 1, 7), ("send", 0, 8)]
    assert (document["verdict"]["kind"], document["verdict"]["ranks"]) == ("mismatched-collective", "0-1")
