"""Damage to the memory and the registers of a recorded process, each as a list of changes that can be left out."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from gdbext.engine.targets.recording.recording import Recording, SparseBytes

from .look import Change

PAGE = 4096
WORD = (1 << 64) - 1
_OBJECT = 64
"""Bytes from its address on that are taken to be of a lock or a pointer that evidence names."""


@dataclass(frozen=True)
class Patch(Change):
    """``data`` is at ``address``; ``around`` is the aligned memory with it, as it is then; ``before``, the word before
    that."""

    address: int
    data: bytes
    around: bytes = field(repr=False)
    before: bytes = field(repr=False)

    @property
    def words(self) -> Sequence[int]:
        return [
            int.from_bytes(self.around[at : at + size], "little")
            for size in (8, 4)
            for at in range(0, len(self.around) - size + 1, size)
        ]

    @property
    def texts(self) -> Sequence[str]:
        """Printable ASCII of two characters and more, with what is beside it in its word, and in the one before: the
        last letter of a text may stand alone in its word."""
        begun = re.findall(rb"[ -~]*\Z", self.before)[0] if self.around[:1] != b"\0" else b""
        found = (part.decode("ascii", "replace") for part in (begun + self.around[:64]).split(b"\0"))
        return [text for text in found if len(text) > 1 and text.isprintable()]

    def is_near(self, address: int) -> bool:
        """Some of it lies in the object at ``address``."""
        return self.address < address + _OBJECT and address < self.address + len(self.data)


@dataclass(frozen=True)
class Hole(Change):
    page: int


@dataclass(frozen=True)
class Register(Change):
    tid: int
    name: str
    value: int

    @property
    def words(self) -> Sequence[int]:
        return (self.value, self.value & 0xFFFFFFFF)


class Memory:
    """The known memory of a process, and the words of it that a look uses."""

    def __init__(self, known: SparseBytes, used: Iterable[int]) -> None:
        self.known = known
        self.used = [word for word in sorted(used) if known.read(word, 8)]
        pages: dict[int, list[int]] = {}
        for word in self.used:
            pages.setdefault(word & -PAGE, []).append(word)
        self.pages = list(pages.values())

    def value(self, word: int) -> int:
        return int.from_bytes(self.known.read(word, 8) or b"", "little")

    def page(self, start: int) -> bytes:
        """A page from where it is known on, with zeros at its end."""
        return b"".join(self.known.cut_to([(start, start + PAGE)]).pieces[:1]).ljust(PAGE, b"\0")

    def words(self, chance: Random, count: int) -> list[int]:
        """Some that are used: half of the time of a page of its own, for tables have most of the words."""
        if not self.used:
            return []
        if chance.random() < 0.5:
            return chance.sample(self.used, min(count, len(self.used)))
        return sorted({chance.choice(chance.choice(self.pages)) for _ in range(count)})

    def patch(self, address: int, data: bytes) -> Patch:
        start, end = address & -8, -(-(address + len(data)) // 8) * 8
        around = bytearray(self.known.read(start, end - start) or bytes(end - start))
        around[address - start : address - start + len(data)] = data
        return Patch(address, data, bytes(around), self.known.read(start - 8, 8) or b"")

    def put(self, word: int, value: int) -> Patch:
        return self.patch(word, (value & WORD).to_bytes(8, "little"))


def _another(chance: Random, before: int, *others: int) -> int:
    """Nothing, all ones, a number beside the one that was there or like it, any number, or one of the others."""
    near, flipped = (before + 8, before - 8, before - 16), before ^ 1 << chance.randrange(64)
    return chance.choice((0, 1, WORD, *near, flipped, chance.getrandbits(64), chance.getrandbits(47), *others)) & WORD


def bits(memory: Memory, chance: Random) -> list[Change]:
    """Single bits of what is used."""
    found: list[Change] = []
    for word in memory.words(chance, chance.choice((1, 1, 2, 5, 30))):
        at = chance.randrange(8)
        before = (memory.known.read(word + at, 1) or b"\0")[0]
        found.append(memory.patch(word + at, bytes([before ^ 1 << chance.randrange(8)])))
    return found


def pointers(memory: Memory, chance: Random) -> list[Change]:
    """Words that lead to themselves, to other objects, beside what they led to, or nowhere."""
    found: list[Change] = []
    for word in memory.words(chance, chance.choice((1, 1, 3, 10, 100, 1000))):
        other = chance.choice(memory.used)
        others = (word, word - 8, other, *[memory.value(other)] * 2)
        found.append(memory.put(word, _another(chance, memory.value(word), *others)))
    return found


def counts(memory: Memory, chance: Random) -> list[Change]:
    """Small numbers that become huge, negative or off by one."""
    found: list[Change] = []
    huge = (1 << 16, 1 << 31, 1 << 32, (1 << 31) - 1, 1 << 40, 1 << 63, WORD)
    for word in memory.words(chance, chance.choice((20, 200, 2000))):
        before = memory.value(word)
        if before < 1 << 20:
            found.append(memory.put(word, chance.choice((0, 1, before + 1, before - 1, *huge))))
    return found[: chance.choice((1, 3, 20, 200))]


_TEXTS = (
    *(b"\0", b"\x1b[31m", b"\x1b]0;x\x07", b"\xff\xfe", b"\xe2\x80\xae", b"\xed\xa0\x80", b"\r\n", b'"}', b"%n%s"),
    *(b"../", b"A" * 64, b"aten::", b"::", b"torch/", b"<string>", b"MainThread", b"/proc/self/mem"),
)


def strings(memory: Memory, chance: Random) -> list[Change]:
    """Bytes of what reads as text: control characters, broken UTF-8, no end, nothing at all."""
    found: list[Change] = []
    for word in memory.words(chance, 400):
        raw = memory.known.read(word, 8).ljust(8, b"\0")
        start = next((at for at in range(8) if 32 < raw[at] < 127), None)
        if start is None or sum(32 <= byte < 127 for byte in raw) < 4:
            continue
        data = chance.choice(_TEXTS)
        if memory.known.read(word + start, len(data)):
            found.append(memory.patch(word + start, data))
    return found[: chance.choice((1, 3, 20))]


def pages(memory: Memory, chance: Random) -> list[Change]:
    """Pages that cannot be read, hold one byte only, nothing sensible, or what another page holds."""
    found: list[Change] = []
    for _ in range(chance.choice((1, 1, 2, 5)) if memory.pages else 0):
        page = chance.choice(memory.pages)[0] & -PAGE
        other = chance.choice(memory.pages)[0] & -PAGE
        same = bytes([chance.choice((0, 1, 0x41, 0xFF))]) * PAGE
        data = chance.choice((b"", same, chance.randbytes(PAGE), memory.page(other)))
        known = memory.known.cut_to([(page, page + PAGE)]) if data else ()
        found += [memory.patch(start, data[start - page :][: len(piece)]) for start, piece in known] or [Hole(page)]
    return found


def holes(memory: Memory, chance: Random) -> list[Change]:
    """Pages that cannot be read, up to half of all."""
    count = min(chance.choice((1, 2, 5, 20, max(1, len(memory.pages) // 2))), len(memory.pages))
    return [Hole(words[0] & -PAGE) for words in chance.sample(memory.pages, count)]


def named(memory: Memory, recording: Recording, numbers: Iterable[int], chance: Random) -> list[Change]:
    """Words of the objects that a report names (its locks), by what such words hold: thread ids, few, addresses."""
    words = [number & -8 for number in numbers if memory.known.read(number & -8, _OBJECT)]
    tids = [thread.tid for thread in recording.threads]
    found: dict[int, Change] = {}
    for _ in range(chance.choice((1, 1, 2, 4)) if words and memory.used else 0):
        at = chance.choice(words) + chance.randrange(-16, _OBJECT, 4)
        raw = memory.known.read(at, 8)
        if raw is None:
            continue
        ids = (chance.choice(tids), chance.choice(tids) + chance.randrange(-3, 4), chance.randrange(1 << 22))
        few = (2, chance.randrange(64), 1 << chance.randrange(32))
        used = (memory.value(chance.choice(memory.used)), chance.choice(memory.used))
        new = _another(chance, int.from_bytes(raw, "little"), *ids, *ids, *few, *used)
        size = 4 if new < 1 << 32 and chance.random() < 0.7 else 8
        found[at] = memory.patch(at, new.to_bytes(8, "little")[:size])
    return list(found.values())


DAMAGES: dict[str, Callable[[Memory, Random], list[Change]]] = {
    each.__name__: each for each in (bits, pointers, counts, strings, pages, holes)
}


def registers(recording: Recording, memory: Memory, chance: Random) -> list[Change]:
    """Some hold other numbers, another register's or another thread's."""
    threads = [thread for thread in recording.threads if thread.registers]
    found: list[Change] = []
    for _ in range(chance.choice((1, 1, 2, 10, 100)) if threads else 0):
        thread, other = chance.choice(threads), chance.choice(threads)
        name = chance.choice(sorted(thread.registers))
        others = (other.registers.get(name, 0), chance.choice(sorted(thread.registers.values())))
        used = chance.choice(memory.used) if memory.used else 0
        found.append(Register(thread.tid, name, _another(chance, thread.registers[name], *others, used)))
    return found


def damaged(recording: Recording, changes: Sequence[Change]) -> Recording:
    writes = [(change.address, change.data) for change in changes if isinstance(change, Patch)]
    gone = {change.page for change in changes if isinstance(change, Hole)}
    values = {(change.tid, change.name): change.value for change in changes if isinstance(change, Register)}
    known = overwritten(recording.memory, writes) if writes else recording.memory
    if gone:
        known = known.cut_to(zip([0, *(page + PAGE for page in sorted(gone))], [*sorted(gone), 1 << 64]))
    threads = []
    for thread in recording.threads:
        registers = {name: values.get((thread.tid, name), value) for name, value in thread.registers.items()}
        threads.append(thread._replace(registers=registers))
    return recording._replace(memory=known, unreadable=recording.unreadable | gone, threads=tuple(threads))


def overwritten(known: SparseBytes, writes: Iterable[tuple[int, bytes]]) -> SparseBytes:
    """The bytes with others at these places, as far as there are any."""
    pieces: dict[int, bytearray] = {}
    for address, data in writes:
        index = bisect_right(known.starts, address) - 1
        if index not in pieces:
            pieces[index] = bytearray(known.pieces[index])
        piece, at = pieces[index], address - known.starts[index]
        piece[at : at + len(data)] = data[: max(0, len(piece) - at)]
    return SparseBytes(known.starts, [bytes(pieces.get(index, piece)) for index, piece in enumerate(known.pieces)])
