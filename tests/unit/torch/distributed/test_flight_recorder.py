"""The flight recorder in a fake memory, laid out as the shipped layout of 2.13.0 has it: whole, wrapped and damaged."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from gdbext.engine.layouts import Layout, store
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData
from gdbext.torch.distributed.flight_recorder import FlightRecorder
from support.fakes.fake_target import FakeTarget

LAYOUT = Layout(store.read_layout(f"{store.DATA}/torch-2.13.0+cpu-cxx11.json", whole=True))
RECORDER = LAYOUT.struct("c10d::FlightRecorder")
ENTRY = LAYOUT.struct("c10d::FlightRecorder::Entry")
BASE, ENTRIES, NODES = 0x100000, 0x200000, 0x300000


class Made(NamedTuple):
    """What an entry of the made-up recorder says."""

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
    return FlightRecorder(Memory(FakeTarget(padded)), LAYOUT, BASE)


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


@pytest.mark.parametrize(("claimed", "following"), [(1 << 30, 0), (1, 2)])
def test_a_ring_that_makes_no_sense_is_refused(claimed: int, following: int) -> None:
    with pytest.raises(BadData):
        recorder([Made(1)], following, claimed=claimed).entries()


def test_a_map_whose_nodes_form_a_ring_is_refused() -> None:
    """It has three of them, in a line to the right, as its header says."""
    raw = bytearray(RECORDER.size)
    map_at = RECORDER.offset("pg_name_to_ranks_")
    raw[map_at : map_at + 48] = bytes(16) + struct.pack("<QQQQ", NODES, 0, 0, 3)
    node = struct.pack("<QQQQ", 0, 0, NODES, 0)
    regions = {BASE: bytes(raw) + bytes(-len(raw) % 4096), NODES: node.ljust(4096, b"\0")}
    with pytest.raises(BadData):
        FlightRecorder(Memory(FakeTarget(regions)), LAYOUT, BASE).groups()
