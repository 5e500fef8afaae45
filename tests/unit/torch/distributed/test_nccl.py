"""Groups of NCCL in recorded processes of wheels for CUDA, beside what their own flight recorders wrote down."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.job.collectives import transfer_of
from gdbext.errors import BadData
from gdbext.torch.distributed import flight_recorder
from support.recorded.recordings import Replay

LATE = ("nccl-late-0-2.15.0", "nccl-late-0-nccl-legacy-2.15.0")


@pytest.mark.parametrize("name", LATE)
def test_what_the_process_recorded(replay: type[Replay], name: str) -> None:
    """By the wheel's own recorder of NCCL, and by that of the hook that the groups of 2.15 have instead."""
    rank = replay(name)
    own = rank.truth["recorded"]
    found = rank.document("dispatch-collectives")["collectives"]
    (group,) = found["groups"]
    assert found["source"] == "flight-recorder"
    assert (group["name"], group["description"], group["ranks"]) == ("0", "default_pg", [0, 1])
    status = own["pg_status"]["0"]
    assert str(group["last_enqueued"]) == status["last_enqueued_collective"]
    assert str(group["last_completed"]) == status["last_completed_collective"]
    recorded = [(each["collective_seq_id"], each["profiling_name"], each["input_sizes"]) for each in own["entries"]]
    assert [(each["seq"], f"{each['backend']}:{each['op']}", each["sizes"]) for each in group["recent"]] == recorded
    pending = [each["collective_seq_id"] for each in own["entries"] if each["state"] != "completed"]
    assert [each["seq"] for each in group["pending"]] == pending == [4, 5]
    verdict = rank.diagnosis["verdict"]
    assert verdict["kind"] == "waiting-external"
    assert "waits for the device, which is not past #4 all_reduce" in verdict["summary"]


def test_a_registry_that_cannot_be_read_costs_no_other_recorder(
    replay: type[Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> list[int]:
        raise BadData("the hash table claims 9999 elements")

    monkeypatch.setattr(flight_recorder, "find_recorders_of_hooks", damaged)
    report = replay(LATE[1]).document("dispatch-collectives")
    assert [each["seq"] for each in report["collectives"]["groups"][0]["pending"]] == [4, 5]
    assert [each["what"] for each in report["errors"] if each["where"] == "flight recorder"] == [
        "the hash table claims 9999 elements"
    ]


def test_a_group_without_a_flight_recorder(replay: type[Replay]) -> None:
    """2.6.0 records nothing unless asked to: how far it came and what is pending is in the group itself."""
    rank = replay("nccl-late-0-2.6.0")
    assert "entries" not in rank.truth["recorded"]
    found = rank.document("dispatch-collectives")["collectives"]
    (group,) = found["groups"]
    assert found["source"] == "process-group"
    assert (group["last_enqueued"], group["last_completed"]) == (5, 3)
    assert [(each["seq"], each["op"]) for each in group["pending"]] == [(4, "all_reduce"), (5, "broadcast")]
    assert all(each["age_ms"] > 2000 for each in group["pending"])
    assert "which is not past #4 all_reduce (enqueued 5, completed 3)" in rank.diagnosis["verdict"]["summary"]


def test_the_name_of_a_transfer_has_its_ends() -> None:
    assert [transfer_of(name) for name in ("recv 0<-1", "send 3->12", "send")] == [
        ("recv", 1),
        ("send", 12),
        ("send", None),
    ]
    for name in ("recv 0<-x", "all_reduce", "coalesced 1->2"):
        assert transfer_of(name) == (name, None)
