"""A group of NCCL in a fake memory, as 2.6.0 lays it out: how far it came, what its watchdog does not see completed."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from gdbext.engine.layouts import Layout, store
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData
from gdbext.torch.distributed.process_groups import GROUP, STATUS, WORK, NcclGroup, read_group
from support.fakes.fake_target import FakeTarget

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
