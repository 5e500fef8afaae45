"""Groups of NCCL: in recorded processes of wheels for CUDA, beside what their own flight recorders wrote down, and in a
fake memory, as 2.6.0 lays them out: how far they came, what their watchdogs do not see completed."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from gdbext.engine.layouts import Layout, store
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData
from gdbext.torch.distributed import flight_recorder
from gdbext.torch.distributed.process_groups import GROUP, STATUS, WORK, NcclGroup, read_group
from support.fakes.fake_target import FakeTarget
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


CXX11 = False
LAYOUT = Layout(store.read_layout(f"{store.DATA}/torch-2.6.0+cu124-precxx11.json", whole=True))
MEMBERS = store.nccl_groups("2.6.0+cu124", CXX11)
BASE, NUMBERS, WORKS, PAGE = 0x100000, 0x200000, 0x300000, 0x1000
ALL_REDUCE, BROADCAST = 1, 0


def group(last: int, status: tuple[int, int, int], works: Sequence[tuple[int, int]], broken: bool = False) -> NcclGroup:
    """With works of these numbers and types, a page each."""
    raw, numbers = bytearray(PAGE), bytearray(PAGE)
    listed = BASE + MEMBERS[GROUP]["workMetaList_"]
    places = [listed, *(WORKS + index * PAGE for index in range(len(works)))]
    links = {place: (places[(at + 1) % len(places)], places[at - 1]) for at, place in enumerate(places)}
    struct.pack_into("<QQ", raw, listed - BASE, *links[listed])
    struct.pack_into("<Q", raw, MEMBERS[GROUP]["seqCollective_"], last)
    struct.pack_into("<Q", raw, MEMBERS[GROUP]["pgStatus_"], NUMBERS)
    for (_name, offset), value in zip(MEMBERS[STATUS].items(), status):
        struct.pack_into("<q", numbers, offset, value)
    regions = {BASE: bytes(raw), NUMBERS: bytes(numbers)}
    for place, (number, kind) in zip(places[1:], works):
        page = bytearray(PAGE)
        struct.pack_into("<QQ", page, 0, links[place][0], place if broken else links[place][1])
        for name, form, value in (("seq_", "<Q", number), ("opType_", "<B", kind), ("opTimeout_", "<q", 600_000)):
            struct.pack_into(form, page, 16 + MEMBERS[WORK][name], value)
        regions[place] = bytes(page)
    return read_group(Memory(FakeTarget(regions)), LAYOUT, MEMBERS, BASE)


def test_what_is_pending() -> None:
    found = group(5, (5, -1, 3), [(4, ALL_REDUCE), (5, BROADCAST)])
    assert (found.status.enqueued, found.status.started, found.status.completed) == (5, -1, 3)
    works = [(work.seq, work.op, work.timeout_ms) for work in found.works]
    assert works == [(4, "all_reduce", 600_000), (5, "broadcast", 600_000)]
    assert group(0, (-1, -1, -1), []).works == (), "before the first operation"


@pytest.mark.parametrize(
    ("last", "status", "works", "broken"),
    [
        (3, (5, -1, 3), [], False),
        (5, (3, -1, 4), [], False),
        (5, (5, -1, 3), [(9, ALL_REDUCE)], False),
        (5, (5, -1, 3), [(4, ALL_REDUCE)], True),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(
    last: int, status: tuple[int, int, int], works: list[tuple[int, int]], broken: bool
) -> None:
    with pytest.raises(BadData):
        group(last, status, works, broken)
