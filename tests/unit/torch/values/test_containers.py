"""Containers of libstdc++ and ska, whole and damaged, in a fake memory."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, MemoryFault
from gdbext.torch.values.containers import StringReader, check_hashed, list_items, map_slots, vector_span
from support.fakes.fake_target import FakeTarget

BASE = 0x100000
HEAP = 0x200000
GOLDEN = 11400714819323198485


def memory(regions: Mapping[int, bytes]) -> Memory:
    """Regions padded to pages, since the cache reads whole pages."""
    return Memory(FakeTarget({start: raw + bytes(-len(raw) % 4096) for start, raw in regions.items()}))


def test_a_lying_length_is_refused_and_what_cannot_be_read_is_a_fault() -> None:
    def read(data: int, length: int) -> str:
        return StringReader(memory({BASE: struct.pack("<QQ", data, length) + bytes(16), HEAP: b""})).read(BASE)

    for data, length in ((HEAP, 1 << 40), (BASE + 16, 16), (BASE + 16, 1 << 63)):
        with pytest.raises(BadData):
            read(data, length)
    with pytest.raises(MemoryFault):
        read(0xDEAD000, 20)
    with pytest.raises(MemoryFault):
        list_items(list_memory(3, {HEAP + 32: 0xDEAD0000}), BASE, 10)


def list_memory(count: int, patches: Mapping[int, int] | None = None, size: int | None = None) -> Memory:
    """``count`` nodes of 32 bytes from HEAP on, the header at BASE; ``patches`` writes words over it."""
    nodes = [HEAP + 32 * index for index in range(count)]
    ring = [BASE, *nodes, BASE]
    words = {BASE: ring[1], BASE + 8: ring[-2], BASE + 16: count if size is None else size}
    for index, node in enumerate(nodes, 1):
        words[node], words[node + 8] = ring[index + 1], ring[index - 1]
    words.update(patches or {})
    header, heap = bytearray(4096), bytearray(max(4096, 32 * count))
    for address, word in words.items():
        target, start = (header, BASE) if address < HEAP else (heap, HEAP)
        struct.pack_into("<Q", target, address - start, word)
    return memory({BASE: bytes(header), HEAP: bytes(heap)})


CYCLE, SELF, BACK_LINK, LAST = {HEAP + 32: HEAP}, {HEAP + 64: HEAP + 64}, {HEAP + 40: 0}, {BASE + 8: HEAP}


@pytest.mark.parametrize(
    "damaged",
    [*(list_memory(5, each) for each in (CYCLE, SELF, BACK_LINK, LAST)), list_memory(5, size=4), list_memory(11)],
)
def test_a_damaged_list_and_one_that_is_too_long_are_refused(damaged: Memory) -> None:
    with pytest.raises(BadData, match="list"):
        list_items(damaged, BASE, 10)
    assert list_items(list_memory(3), BASE, 10) == [HEAP + 16, HEAP + 48, HEAP + 80]


def test_a_vector_and_what_is_none() -> None:
    contents = struct.pack("<QQQ", HEAP, HEAP + 48, HEAP + 64)
    assert vector_span(memory({BASE: contents}), BASE, 16) == (HEAP, 3)
    for ends in ((-16, 0), (20, 32), (32, 16), (1 << 60, 1 << 60)):
        words = [HEAP, *(HEAP + end for end in ends)]
        with pytest.raises(BadData, match="vector"):
            vector_span(memory({BASE: struct.pack("<QQQ", *words)}), BASE, 16)


class HashMap:
    """A ska::flat_hash_map from a 16-bit enumeration to 24 bytes, as libtorch would lay it out (robin hood)."""

    def __init__(self, keys: list[int], slots: int = 8) -> None:
        while len(keys) * 2 > slots:
            slots *= 2
        while not self._build(keys, slots):
            slots *= 2

    def _build(self, keys: list[int], slots: int) -> bool:
        self.slots, self.lookups, self.count = slots, max(4, slots.bit_length() - 1), len(keys)
        self.shift = 64 - (slots - 1).bit_length()
        self.table: list[tuple[int, int]] = [(-1, 0)] * (slots + self.lookups)
        for key in keys:
            at, entry = (key * GOLDEN % (1 << 64)) >> self.shift, (0, key)
            while entry[0] >= 0:  # who is further from home takes the place, and who was there goes on
                if entry[0] >= self.lookups:
                    return False
                if self.table[at][0] < entry[0]:
                    self.table[at], entry = entry, self.table[at]
                if entry[0] >= 0:
                    at, entry = at + 1, (entry[0] + 1, entry[1])
        return True

    def header(self, **changes: int) -> bytes:
        values = {"entries": HEAP, "slots": self.slots - 1, "shift": self.shift, "lookups": self.lookups}
        *head, count = {**values, "count": self.count, **changes}.values()
        return struct.pack("<QQbbxxfQ", *head, 0.5, count)

    def contents(self) -> bytearray:
        raw = bytearray()
        for distance, key in self.table:
            raw += struct.pack("<b7xH6x", distance, key) + struct.pack("<QQQ", key, 0, 0)
        struct.pack_into("<b", raw, 40 * (self.slots + self.lookups - 1), 0)  # the end mark
        return raw

    def memory(self, contents: bytes | None = None, **changes: int) -> Memory:
        return memory({BASE: self.header(**changes), HEAP: bytes(self.contents() if contents is None else contents)})


VALUE = 32


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 200), unique=True, max_size=60))
def test_any_map_gives_its_keys_back(keys: list[int]) -> None:
    fake = HashMap(keys).memory()
    entries = list(map_slots(fake, BASE, VALUE))
    check_hashed(fake, BASE, VALUE, entries, 2)
    assert sorted(entry.raw[0] | entry.raw[1] << 8 for entry in entries) == sorted(keys)
    never_used = struct.pack("<QQbbxxfQ", 0xDEAD0000, 0, 63, 3, 0.5, 0)
    assert list(map_slots(memory({BASE: never_used}), BASE, VALUE)) == []
    for entry in entries:
        assert len(entry.raw) == VALUE
        assert fake.u16(entry.address) == entry.raw[0] | entry.raw[1] << 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("slots", 6), ("slots", (1 << 40) - 1), ("shift", 3), ("shift", -1), ("lookups", 0), ("lookups", 100)),
        *(("count", 1 << 60), ("count", 3), ("entries", 0xDEAD0000), ("entries", 0), ("distance", 60)),
    ],
)
def test_a_map_with_a_damaged_header_or_distance_is_refused(name: str, value: int) -> None:
    fake = HashMap([1, 5, 22, 23])
    contents, changes = fake.contents(), {name: value}
    if name == "distance":
        first = next(index for index, (distance, _) in enumerate(fake.table) if distance >= 0)
        contents[40 * first] = changes.pop(name)
    with pytest.raises(BadData, match="corrupt"):
        map_slots(fake.memory(bytes(contents), **changes), BASE, VALUE)
