"""Programs for the kernel: run instruction by instruction, their places, what they write, and why they are refused."""

from __future__ import annotations

import errno
import mmap
import os
import random
import struct
from collections import Counter
from collections.abc import Iterator

import pytest

from gdbext.engine.arch import architectures
from gdbext.errors import ProbesRefused
from gdbext.tools.probes.bpf.bpf_kernel import Bpf, Circumstances, refusal
from gdbext.tools.probes.bpf.place_program import Filter, TracePlace, cookie
from gdbext.tools.probes.dispatch_counter import CounterMaps, cell_counts, counting_program
from gdbext.tools.probes.dispatch_tracer import HEADER, Ring, UniformRing
from gdbext.tools.probes.site_scan import NOWHERE, DispatchSite
from gdbext.torch.stack import DispatchEvent
from support.fakes.ebpf_machine import Machine, Maps

X86_64 = architectures.by_name("x86_64")


def test_the_first_cheap_place_that_has_the_arguments() -> None:
    for code, kept, offset in (
        ("55 4889e5 c3", 2, 0),  # push %rbp
        ("4889f0 4889c2 4154 c3", 2, 6),  # mov %rsi,%rax; mov %rax,%rdx; push %r12
        ("f30f1efa 55 c3", 2, 4),  # endbr64; push %rbp
        ("4889d6 55 c3", 2, None),  # mov %rdx,%rsi takes the second argument away
        ("4889d6 55 c3", 1, 3),  # … which is not wanted here
        ("c3", 1, None),  # ret
        ("ffe0", 1, None),  # jmp *%rax is stepped over, and what follows is not reached
        ("e900000000", 1, 0),  # jmp rel32
        ("0f1f4000 c3", 1, 0),  # nopl 0(%rax)
    ):
        assert X86_64.probe_offset(bytes.fromhex(code.replace(" ", "")), kept) == offset, code


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
    code = counting_program(X86_64, told)
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


def test_one_thread_and_wanted_operators_only_and_what_finds_no_room() -> None:
    told, contents = maps()
    contents.hashes[WANTED][(0x8000).to_bytes(8, "little")] = bytearray(8)
    for hit in ((2, 0x8000, 5, 11), (2, 0x9000, 5, 11), (0, 0, 5, 11), (0, 0, 5, 12)):
        machine(counting_program(X86_64, told, only=Filter(11)), contents, hit).run()
    assert counted(contents) == {(0, 0, 5): 1, (2, 0x8000, 5): 1}
    told, contents = maps(None)
    contents.room = 2
    for hit in ((0, 0, 5, 11), (0, 0, 5, 12), (0, 0, 6, 11), (0, 0, 5, 11)):
        machine(counting_program(X86_64, told), contents, hit).run()
    threads = {int.from_bytes(key[24:32], "little"): value[0] for key, value in contents.hashes[COUNTS].items()}
    assert (threads, contents.arrays[LOST][0][0]) == ({11: 2, 12: 1}, 1)


SIZE = mmap.PAGESIZE
RECORD = struct.Struct("<QQQ")
BUSY = 1 << 31


class Kernel:
    """The other side: the kernel's writer, in a file of memory laid out as the kernel maps it."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("ring")
        os.ftruncate(self.descriptor, 2 * mmap.PAGESIZE + SIZE)
        self.memory = mmap.mmap(self.descriptor, 0)
        self.written = 0

    @property
    def read(self) -> int:
        return int(struct.unpack_from("<Q", self.memory, 0)[0])

    def write(self, payload: bytes, flags: int = 0) -> int:
        """Append a record; where its header is."""
        start = self.written
        for at, byte in enumerate(struct.pack("<II", len(payload) | flags, 0) + payload):
            self.memory[2 * mmap.PAGESIZE + (start + at) % SIZE] = byte
        self.written += HEADER + len(payload) + 7 & ~7
        struct.pack_into("<Q", self.memory, mmap.PAGESIZE, self.written)
        return 2 * mmap.PAGESIZE + start % SIZE


def test_records_go_round_many_times() -> None:
    kernel = Kernel()
    ring = UniformRing(kernel.descriptor, SIZE, RECORD)
    number, found = 0, []
    for count in (1, 100, 127, 3, 128, 77, 0, 126):
        for _ in range(count):
            kernel.write(RECORD.pack(number, number * 3, ~number & 0xFFFF))
            number += 1
        found += list(ring.records(ring.read()))
        assert kernel.read == kernel.written
    assert found == [(each, each * 3, ~each & 0xFFFF) for each in range(number)]
    ring.close()
    kernel = Kernel()
    ring_of_any_size = Ring(kernel.descriptor, SIZE)
    for size in (5, 1000, 2000, 900, 3000, 1, 2500, 4000):
        payload = bytes(each % 251 for each in range(size))
        kernel.write(payload)
        assert list(ring_of_any_size.pieces()) == [payload]
    ring_of_any_size.close()


def test_a_record_that_is_being_written_holds_back_those_behind_it() -> None:
    kernel = Kernel()
    ring = UniformRing(kernel.descriptor, SIZE, RECORD)
    for number in range(126):
        kernel.write(RECORD.pack(number, 0, 0))
    assert len(ring.read()) == 126 * (HEADER + RECORD.size)
    busy = [kernel.write(RECORD.pack(number, 0, 0), BUSY * (number == 128)) for number in range(126, 131)][2]
    assert [first for first, _, _ in ring.records(ring.read())] == [126, 127]
    struct.pack_into("<I", kernel.memory, busy, RECORD.size)
    assert [first for first, _, _ in ring.records(ring.read())] == [128, 129, 130]
    ring.close()


BPF, PERFMON, SYS_ADMIN = 1 << 39, 1 << 38, 1 << 21


@pytest.mark.parametrize(
    ("code", "here", "why", "help_"),
    [
        (errno.EPERM, ("6.18.0", 0, False, False), "CAP_BPF and CAP_PERFMON", "--cap-add=BPF --cap-add=PERFMON"),
        (errno.EPERM, ("6.18.0", BPF, True, True), "need CAP_PERFMON, or root", "--cap-add=PERFMON;"),
        (errno.EPERM, ("6.18.0", SYS_ADMIN, True, True), "user namespace", "on the host"),
        (errno.EPERM, ("6.18.0", BPF | PERFMON, True, False), "seccomp", "seccomp=unconfined"),
        (errno.EACCES, ("6.18.0", SYS_ADMIN, False, False), "locked down", "lockdown"),
        (errno.EINVAL, ("5.10.0-13-amd64", SYS_ADMIN, False, False), "Linux 5.10.0-13-amd64 has", "dispatch-trace OP"),
        (errno.EINVAL, ("6.18.0", SYS_ADMIN, False, False), "Linux 6.18.0 rejected it", "dispatch-trace OP"),
        (errno.ENOSYS, ("6.18.0", 0, False, False), "CONFIG_BPF_SYSCALL", "dispatch-trace OP"),
        (errno.EIO, ("6.6.1", SYS_ADMIN, False, False), "file system", "dispatch-trace OP"),
    ],
)
def test_what_is_missing_is_named(code: int, here: tuple[str, int, bool, bool], why: str, help_: str) -> None:
    error = refusal("a BPF map cannot be created", OSError(code, os.strerror(code)), Circumstances(*here))
    assert error.what == f"a BPF map cannot be created: {os.strerror(code)}"
    assert why in (error.why or "")
    assert help_ in (error.help or "")


def test_a_signal_does_not_end_the_loading_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that was resized meanwhile had commands take breakpoints instead."""
    calls: list[int] = []

    def system_call(_bpf: Bpf, number: int, *_: object) -> int:
        calls.append(number)
        if len(calls) != 4:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return 7

    monkeypatch.setattr(Bpf, "system_call", system_call)
    assert (Bpf(321, True).program(bytes(8)), len(calls)) == (7, 4)
    with pytest.raises(ProbesRefused, match="Resource temporarily unavailable"):
        Bpf(321, True).program(bytes(8))
    assert len(calls) == 4 + 42


def test_which_kernels_place_many_probes_at_once() -> None:
    releases = ("5.15.0-91-generic", "6.5.13", "6.6.0", "7.0", "odd")
    assert [release for release in releases if Circumstances(release, 0, False, False).lacks_many] == list(releases[:2])
