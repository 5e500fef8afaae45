"""Groups of NCCL, in recorded processes and in a fake memory (2.6.0), and the flight recorder in one (2.13.0)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from gdbext.engine.layouts import Layout, store
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData
from gdbext.torch.distributed import flight_recorder
from gdbext.torch.distributed.flight_recorder import FlightRecorder
from gdbext.torch.distributed.process_groups import GROUP, STATUS, WORK, NcclGroup, read_nccl_group
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
    assert "waits for the device, which has not completed collective #4 all_reduce" in verdict["summary"]


def test_a_damaged_registry_costs_no_other_recorder(replay: type[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> list[int]:
        raise BadData("the hash table claims 9999 elements")

    monkeypatch.setattr(flight_recorder, "find_recorders_of_hooks", damaged)
    report = replay(LATE[1]).document("dispatch-collectives")
    assert [each["seq"] for each in report["collectives"]["groups"][0]["pending"]] == [4, 5]
    told = [each["what"] for each in report["errors"] if each["where"] == "flight recorder"]
    assert told == ["the hash table claims 9999 elements"]


CXX11 = False
LAYOUT = Layout(store.read_layout(f"{store.DATA}/torch-2.6.0+cu124-precxx11.json", whole=True))
MEMBERS = store.member_offsets("nccl-groups", "2.6.0+cu124", CXX11)
BASE, NUMBERS, WORKS, PAGE = 0x100000, 0x200000, 0x300000, 0x1000
ALL_REDUCE, BROADCAST = 1, 0


def group(last: int, status: tuple[int, int, int], works: Sequence[tuple[int, int]], broken: bool = False) -> NcclGroup:
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
    return read_nccl_group(Memory(FakeTarget(regions)), LAYOUT, MEMBERS, BASE)


def test_what_is_pending() -> None:
    found = group(5, (5, -1, 3), [(4, ALL_REDUCE), (5, BROADCAST)])
    assert (found.status.enqueued, found.status.started, found.status.completed) == (5, -1, 3)
    works = [(work.seq, work.title, work.timeout_ms) for work in found.works]
    assert works == [(4, "nccl:all_reduce", 600_000), (5, "nccl:broadcast", 600_000)]
    assert group(0, (-1, -1, -1), []).works == (), "before the first operation"


def test_numbers_that_do_not_go_together_are_refused() -> None:
    for last, status in ((3, (5, -1, 3)), (5, (3, -1, 4))):
        with pytest.raises(BadData):
            group(last, status, [])
    for number, broken in ((9, False), (4, True)):
        with pytest.raises(BadData):
            group(5, (5, -1, 3), [(number, ALL_REDUCE)], broken)


LAYOUT_OF_2_13 = Layout(store.read_layout(f"{store.DATA}/torch-2.13.0+cpu-cxx11.json", whole=True))
RECORDER = LAYOUT_OF_2_13.struct("c10d::FlightRecorder")
ENTRY = LAYOUT_OF_2_13.struct("c10d::FlightRecorder::Entry")
ENTRIES, NODES = 0x200000, 0x300000


class Made(NamedTuple):
    seq: int
    sizes: tuple[int, ...] = (8, 2)
    completed: int | None = None
    retired: bool = False
    epoch: int = 0


def entry(made: Made, base: int) -> bytes:
    raw = bytearray(ENTRY.size)

    def put(field: str, form: str, *values: int) -> None:
        struct.pack_into(form, raw, ENTRY.offset(field), *values)

    def text(offset: int, value: str) -> None:
        struct.pack_into("<QQ16s", raw, offset, base + offset + 16, len(value), value.encode())

    put("id_", "<Q", made.seq)
    put("reset_epoch_", "<Q", made.epoch)
    text(ENTRY.offset("pg_name_") + 32, "0")  # libstdc++ keeps a tuple's last element first
    text(ENTRY.offset("pg_name_"), "default_pg")
    put("collective_seq_id_", "<Q", made.seq)
    text(ENTRY.offset("profiling_name_"), "gloo:all_reduce")
    put("retired_", "<B", made.retired)
    put("time_discovered_completed_", "<qB", made.completed or 0, made.completed is not None)
    put("input_dims_", "<QII", base + ENTRY.offset("input_dims_") + 16, 1, 4)
    struct.pack_into("<q", raw, ENTRY.offset("input_dims_") + 16, len(made.sizes))
    put("sizes_", "<QII", base + ENTRY.offset("sizes_") + 16, len(made.sizes), 8)
    struct.pack_into(f"<{len(made.sizes)}q", raw, ENTRY.offset("sizes_") + 16, *made.sizes)
    text(ENTRY.offset("thread_name_"), "python")
    return bytes(raw)


def recorder(entries: Sequence[Made], following: int = 0, epoch: int = 0, claimed: int | None = None) -> FlightRecorder:
    raw = bytearray(RECORDER.size)
    raw[RECORDER.offset("enabled_")] = 1
    count = len(entries) if claimed is None else claimed
    end = ENTRIES + count * ENTRY.size
    struct.pack_into("<QQQ", raw, RECORDER.offset("entries_"), ENTRIES, end, end)
    struct.pack_into("<Q", raw, RECORDER.offset("next_"), following)
    struct.pack_into("<Q", raw, RECORDER.offset("reset_epoch_"), epoch)
    contents = b"".join(entry(made, ENTRIES + number * ENTRY.size) for number, made in enumerate(entries))
    regions = {BASE: bytes(raw), ENTRIES: contents}
    padded = {start: data + bytes(-len(data) % 4096) for start, data in regions.items()}
    return FlightRecorder(Memory(FakeTarget(padded)), LAYOUT_OF_2_13, BASE)


def test_a_ring_is_read_from_its_oldest_entry_after_a_reset_and_what_is_pending() -> None:
    made = [Made(5), Made(6), Made(3, retired=True), Made(4, completed=77)]
    found = recorder(made, following=2).entries()
    assert (found[0].profiling_name, found[0].group) == ("gloo:all_reduce", "0")
    assert [each.collective_seq for each in found] == [3, 4, 5, 6]
    assert [each.is_pending for each in found] == [False, False, True, True]
    assert [each.state for each in found] == ["scheduled", "completed", "scheduled", "scheduled"]
    assert len(recorder([Made(1, epoch=0), Made(1, epoch=1)], epoch=1).entries()) == 1


def test_a_torn_entry_costs_itself() -> None:
    made = [Made(1), Made(2, sizes=(1,) * 5), Made(3)]
    found = recorder(made)
    raw = bytearray(entry(made[1], ENTRIES + ENTRY.size))
    struct.pack_into("<q", raw, ENTRY.offset("input_dims_") + 16, 1 << 40)
    found._memory.target.regions[ENTRIES] = (  # type: ignore[attr-defined]
        entry(made[0], ENTRIES) + bytes(raw) + entry(made[2], ENTRIES + 2 * ENTRY.size) + bytes(4096)
    )
    assert [each.collective_seq for each in found.entries()] == [1, 3]
    assert len(found.problems) == 1


def test_a_ring_that_makes_no_sense_and_a_map_whose_nodes_form_one_are_refused() -> None:
    """The map has three nodes, in a line to the right, as its header says."""
    for claimed, following in ((1 << 30, 0), (1, 2)):
        with pytest.raises(BadData):
            recorder([Made(1)], following, claimed=claimed).entries()
    raw = bytearray(RECORDER.size)
    map_at = RECORDER.offset("pg_name_to_ranks_")
    raw[map_at : map_at + 48] = bytes(16) + struct.pack("<QQQQ", NODES, 0, 0, 3)
    node = struct.pack("<QQQQ", 0, 0, NODES, 0)
    regions = {BASE: bytes(raw) + bytes(-len(raw) % 4096), NODES: node.ljust(4096, b"\0")}
    with pytest.raises(BadData):
        FlightRecorder(Memory(FakeTarget(regions)), LAYOUT_OF_2_13, BASE).groups()
