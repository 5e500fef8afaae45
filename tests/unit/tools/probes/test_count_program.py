"""The counting program, run instruction by instruction: exact also where threads preempt each other on a processor."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from gdbext.engine.arch import architectures
from gdbext.tools.probes.bpf.place_program import Filter, TracePlace, cookie
from gdbext.tools.probes.bpf.probe_programs import CounterMaps, cell_counts, program
from gdbext.tools.probes.site_scan import NOWHERE, DispatchSite
from gdbext.torch.stack import DispatchEvent
from support.fakes.ebpf_machine import Machine, Maps

X86_64 = architectures.by_name("x86_64")
COUNTS, LOST, WANTED, STATES, CELLS = range(3, 8)
OWN = TracePlace("x", DispatchSite(0, DispatchEvent.REDISPATCH, NOWHERE, "rsi", "rsp", 0), 0x4000)
SHARED = TracePlace("x", DispatchSite(4, DispatchEvent.CALL, "rdi", "rdx", "rsp", 0))
FILTERED = SHARED._replace(filtered=True)
PLACES = (OWN, SHARED, FILTERED)
Hit = tuple[int, int, int, int]
"""Place, operator, keyset, thread."""


def maps(cells: int | None = CELLS) -> tuple[CounterMaps, Maps]:
    contents = Maps(hashes={COUNTS: {}, WANTED: {}, STATES: {}}, arrays={LOST: [bytearray(8)]})
    if cells is not None:
        contents.arrays[cells] = [bytearray(24) for _ in PLACES]
    return CounterMaps(COUNTS, LOST, WANTED, STATES, cells), contents


def machine(code: bytes, contents: Maps, hit: Hit) -> Machine:
    number, operator, keyset, thread = hit
    place = PLACES[number]
    registers = {place.site.keyset: keyset, place.site.entry: operator}
    return Machine(code, contents, X86_64, registers, thread, cookie(X86_64, number, place))


def counted(contents: Maps) -> Counter[tuple[int, int, int]]:
    """By place, operator and keyset."""
    found: Counter[tuple[int, int, int]] = Counter()
    for key, value in contents.hashes[COUNTS].items():
        words = [int.from_bytes(key[at : at + 8], "little") for at in range(0, 24, 8)]
        found[words[0], words[1], words[2]] += int.from_bytes(value, "little")
    for number, cell in enumerate(cell_counts(b"".join(contents.arrays.get(CELLS, [])))):
        if cell is not None:
            found[number, cell[0], cell[1]] += cell[2]
    return found


def some_hits(chosen: random.Random) -> Iterator[Hit]:
    for _ in range(chosen.randint(2, 12)):
        number = chosen.randrange(2)
        yield number, 0 if number == 0 else chosen.choice((0x8000, 0x9000)), chosen.choice((0, 1, 0x10001)), 0


def test_threads_that_preempt_each_other_lose_nothing() -> None:
    told, _ = maps()
    code = program(X86_64, told)
    in_cells = 0
    for seed in range(25):
        chosen = random.Random(seed)
        _, contents = maps()
        work = {thread: [(*hit[:3], thread) for hit in some_hits(chosen)] for thread in (11, 12, 13)}
        expected = Counter(hit[:3] for hits in work.values() for hit in hits)
        running: dict[int, Machine] = {}
        while any(work.values()) or running:
            thread = chosen.choice([thread for thread in work if work[thread] or thread in running])
            if thread not in running:
                running[thread] = machine(code, contents, work[thread].pop())
            for _ in range(chosen.randint(1, 30)):
                if running[thread].step():
                    del running[thread]
                    break
        assert counted(contents) == expected, seed
        in_cells += sum(cell is not None for cell in cell_counts(b"".join(contents.arrays[CELLS])))
    assert in_cells > 25


def run(code: bytes, contents: Maps, *hits: Hit) -> None:
    for hit in hits:
        machine(code, contents, hit).run()


def test_one_thread_and_wanted_operators_only() -> None:
    told, contents = maps()
    contents.hashes[WANTED][(0x8000).to_bytes(8, "little")] = bytearray(8)
    hits = ((2, 0x8000, 5, 11), (2, 0x9000, 5, 11), (0, 0, 5, 11), (0, 0, 5, 12))
    run(program(X86_64, told, only=Filter(11)), contents, *hits)
    assert counted(contents) == {(0, 0, 5): 1, (2, 0x8000, 5): 1}


def test_threads_are_told_apart_in_the_map_and_what_finds_no_room_is_lost() -> None:
    told, contents = maps(None)
    contents.room = 2
    run(program(X86_64, told), contents, (0, 0, 5, 11), (0, 0, 5, 12), (0, 0, 6, 11), (0, 0, 5, 11))
    threads = {int.from_bytes(key[24:32], "little"): value[0] for key, value in contents.hashes[COUNTS].items()}
    assert (threads, contents.arrays[LOST][0][0]) == ({11: 2, 12: 1}, 1)
