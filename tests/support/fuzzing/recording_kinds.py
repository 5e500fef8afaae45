"""Damaged recordings: the memory and registers of the recorded process, and the file that holds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Any

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.recording import container, recorder, recording_reader
from gdbext.engine.targets.recording.recording import RecordedFile, RecordedNumbers, Recording, SparseBytes
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.tools import table
from gdbext.tools.table import Outcome
from support.recorded import recordings

from . import json_damage, memory_damage, subjects
from .byte_damage import Bytes, damage_bytes, with_bytes
from .look import Change, Kind, Look
from .memory_damage import PAGE
from .subjects import Subject


class _RecordingKind(Kind):
    def look(self, seed: int) -> Look:
        found = subjects.subject(subjects.name_for(self.block_chance(seed)))
        chance = self.chance(seed)
        return self.planned(found, subjects.some_command(chance), chance)

    def planned(self, found: Subject, command: tuple[str, ...], chance: Random) -> Look:
        raise NotImplementedError


class MemoryKind(_RecordingKind):
    """What the process has in its memory."""

    def __init__(self, name: str, share: int) -> None:
        self.name = f"memory-{name}"
        self.share = share
        self._damage = memory_damage.DAMAGES[name]

    def planned(self, found: Subject, command: tuple[str, ...], chance: Random) -> Look:
        changes = self._damage(found.memory, chance)
        return subjects.look_at(found, command, changes, partial(_run, command, found.recording))


class NamedWordKind(_RecordingKind):
    """The words of the locks that its reports name."""

    name = "memory-named"
    share = 10

    def planned(self, found: Subject, command: tuple[str, ...], chance: Random) -> Look:
        numbers = sorted({each for evidence in found.truth.values() for each in evidence.numbers if each >= PAGE})
        changes = memory_damage.named(found.memory, found.recording, numbers, chance)
        return subjects.look_at(found, command, changes, partial(_run, command, found.recording))


class RegisterKind(_RecordingKind):
    """What its threads have in their registers."""

    name = "registers"
    share = 10

    def planned(self, found: Subject, command: tuple[str, ...], chance: Random) -> Look:
        changes = memory_damage.registers(found.recording, found.memory, chance)
        return subjects.look_at(found, command, changes, partial(_run, command, found.recording))


def _run(command: Sequence[str], recording: Recording, changes: Sequence[Change]) -> Outcome:
    return subjects.execute(command, memory_damage.damaged(recording, changes))


# --- the file ---------------------------------------------------------------------------------------------------


class FileKind(_RecordingKind):
    """Bytes of the file as it is on disk: its header, and the compressed stream behind it."""

    name = "recording-bytes"
    share = 4

    def planned(self, found: Subject, command: tuple[str, ...], chance: Random) -> Look:
        data = _file(found.name)
        end = container.HEADER.size if chance.random() < 0.5 else len(data)
        return Look(found.name, command, damage_bytes(chance, 0, end, len(data)), partial(_decoded, command, data))


class ContentsKind(_RecordingKind):
    """Bytes behind a header that is right: the document, and the tables of the blocks."""

    name = "recording-contents"
    share = 6

    def planned(self, found: Subject, command: tuple[str, ...], chance: Random) -> Look:
        contents = _contents(found.name)
        size = int.from_bytes(contents[:4], "little") + 8
        end = chance.choice((8, size, size, min(len(contents), size + 4096), len(contents)))
        changes = damage_bytes(chance, 0 if end == 8 else 8, end, len(contents))
        return Look(found.name, command, changes, partial(_parsed, command, contents))


class DocumentKind(_RecordingKind):
    """Members of the document that are others, missing, of another type, or far too many."""

    name = "recording-document"
    share = 8

    def planned(self, found: Subject, command: tuple[str, ...], chance: Random) -> Look:
        document, blocks = _parts(found.name)
        changes = json_damage.damage_json(document, chance)
        return Look(found.name, command, changes, partial(_rebuilt, command, document, blocks))


def _decoded(command: Sequence[str], data: bytes, changes: Sequence[Change]) -> Outcome:
    return _opened(command, lambda: recording_reader.decode(with_bytes(data, changes)))


def _parsed(command: Sequence[str], contents: bytes, changes: Sequence[Change]) -> Outcome:
    return _opened(command, lambda: recording_reader.from_parts(*container.parse(with_bytes(contents, changes))))


def _rebuilt(command: Sequence[str], document: Any, blocks: list[SparseBytes], changes: Sequence[Change]) -> Outcome:
    return _opened(command, lambda: recording_reader.from_parts(json_damage.with_changes(document, changes), blocks))


def _opened(command: Sequence[str], load: Callable[[], Recording]) -> Outcome:
    return table.execute(command[0], command[1:], lambda: Session(ReplayTarget(load())))


@lru_cache(maxsize=2)
def _file(name: str) -> bytes:
    return (recordings.FOLDER / f"{name}.rec").read_bytes()


@lru_cache(maxsize=2)
def _contents(name: str) -> bytes:
    return container.unwrap(_file(name))


@lru_cache(maxsize=2)
def _parts(name: str) -> tuple[Any, list[SparseBytes]]:
    document, blocks = recorder.parts(subjects.subject(name).recording)
    return json.loads(json.dumps(document)), blocks


# --- the files of the process that it holds -----------------------------------------------------------------------


@dataclass(frozen=True)
class InFile(Change):
    """``change`` is to the bytes of a file of the recording, or to an array of its symbol index."""

    file: int
    array: tuple[str, int] | None
    change: Bytes

    def __str__(self) -> str:
        array = "" if self.array is None else f" {self.array[0]} {self.array[1]}"
        return f"file {self.file}{array}: {self.change}"


class ElfKind(_RecordingKind):
    """Headers, unwind tables, code, symbols and strings of the ELF files that it holds."""

    name = "recording-elf"
    share = 8

    def planned(self, found: Subject, command: tuple[str, ...], chance: Random) -> Look:
        files = found.recording.files
        changes: list[Change] = []
        for _ in range(chance.choice((1, 1, 3, 20)) if files else 0):
            number = chance.randrange(len(files))
            changes += _in_block(files[number].contents, number, None, chance)
        return Look(found.name, command, changes, partial(_with_files, command, found.recording))


class IndexKind(_RecordingKind):
    """The arrays of the symbol indexes: numbers, and how many there are."""

    name = "recording-indexes"
    share = 6

    def planned(self, found: Subject, command: tuple[str, ...], chance: Random) -> Look:
        arrays = [
            (number, kind, which, pair[which])
            for number, file in enumerate(found.recording.files)
            for kind, pair in sorted(file.arrays.items())
            for which in (0, 1)
        ]
        changes: list[Change] = []
        for _ in range(chance.choice((1, 1, 3, 20)) if arrays else 0):
            number, kind, which, array = chance.choice(arrays)
            if chance.random() < 0.3:
                count = chance.choice((0, 1, array.length // 2, array.length * 2, 1 << 32, array.length - 1))
                changes.append(Count(number, (kind, which), max(0, count)))
            else:
                changes += _in_block(array.contents, number, (kind, which), chance)
        return Look(found.name, command, changes, partial(_with_files, command, found.recording))


@dataclass(frozen=True)
class Count(Change):
    """An array claims so many numbers."""

    file: int
    array: tuple[str, int]
    count: int

    def __str__(self) -> str:
        return f"file {self.file} {self.array[0]} {self.array[1]} has {self.count} numbers"


def _in_block(block: SparseBytes, file: int, array: tuple[str, int] | None, chance: Random) -> list[Change]:
    if not block.pieces:
        return []
    index = chance.randrange(len(block.pieces))
    start, size = block.starts[index], len(block.pieces[index])
    found = damage_bytes(chance, start, start + size, start + size, cuts=False)
    return [InFile(file, array, each) for each in found if isinstance(each, Bytes)]


def _with_files(command: Sequence[str], recording: Recording, changes: Sequence[Change]) -> Outcome:
    files = list(recording.files)
    for change in changes:
        if isinstance(change, (InFile, Count)):
            files[change.file] = _changed(files[change.file], change)
    damaged = recording._replace(files=tuple(files))
    return _opened(
        command, lambda: recording_reader.from_parts(*recorder.parts(damaged))
    )  # as a file would be: checked


def _changed(file: RecordedFile, change: InFile | Count) -> RecordedFile:
    if change.array is None:
        assert isinstance(change, InFile)
        return file._replace(contents=_overwritten(file.contents, change.change))
    kind, which = change.array
    pair = list(file.arrays[kind])
    if isinstance(change, Count):
        pair[which] = pair[which]._replace(length=change.count)
    else:
        contents = _overwritten(pair[which].contents, change.change)
        pair[which] = RecordedNumbers(pair[which].length, pair[which].width, contents)
    return file._replace(arrays={**file.arrays, kind: (pair[0], pair[1])})


def _overwritten(block: SparseBytes, change: Bytes) -> SparseBytes:
    pieces = list(block.pieces)
    for index, start in enumerate(block.starts):
        at = change.offset - start
        if 0 <= at < len(pieces[index]):
            piece = bytearray(pieces[index])
            piece[at : at + len(change.data)] = change.data[: len(piece) - at]
            pieces[index] = bytes(piece)
    return SparseBytes(block.starts, pieces)


# --- what was asked of the system ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FactChange(Change):
    """What the recording has of the system by that name, or of the auxiliary vector, or a line of the memory map."""

    what: str
    key: Any
    value: Any

    def __str__(self) -> str:
        return f"{self.what} {self.key} is {self.value!r:.80}"


class FactKind(_RecordingKind):
    """Answers of /proc, small files (torch/version.py among them), the memory map, the auxiliary vector."""

    name = "recording-facts"
    share = 6
    _GARBAGE: tuple[Any, ...] = (
        "",
        "\0",
        "7 (x) S " * 20,
        ["x"],
        [],
        None,
        -1.5,
        1e300,
        "0x",
        "__version__ = '2.13.0'\n" * 3,
        "9" * 400,
        "\x1b[2J",
        ["../../etc/passwd", "1", "-1", "99999999999"],
        "Name:\tx\nState:\tS",
        "-1 -1 -1",
        "/proc/self/mem",
    )

    def planned(self, found: Subject, command: tuple[str, ...], chance: Random) -> Look:
        recording = found.recording
        changes: list[Change] = []
        for _ in range(chance.choice((1, 2, 10, 100))):
            changes.append(chance.choice((self._fact, self._fact, self._auxv, self._mapping))(recording, chance))
        return Look(found.name, command, changes, partial(_with_facts, command, recording))

    def _fact(self, recording: Recording, chance: Random) -> FactChange:
        name = chance.choice(sorted(recording.facts))
        before = recording.facts[name]
        if isinstance(before, str) and before and chance.random() < 0.5:
            raw = bytearray(before.encode())
            raw[chance.randrange(len(raw))] = chance.randrange(256)
            return FactChange("fact", name, raw.decode("utf-8", "replace"))
        return FactChange("fact", name, chance.choice(self._GARBAGE))

    def _auxv(self, recording: Recording, chance: Random) -> FactChange:
        key = chance.choice(sorted(recording.auxv) or [3])
        return FactChange("auxv", key, chance.choice((0, 1, chance.getrandbits(64), chance.getrandbits(47), 1 << 62)))

    def _mapping(self, recording: Recording, chance: Random) -> FactChange:
        number = chance.randrange(len(recording.maps))
        before = recording.maps[number]
        after = chance.choice(
            (
                before._replace(end=before.start + chance.choice((1, 4096, 1 << 46))),
                before._replace(path=chance.choice(recording.maps).path),
                before._replace(path="\x1b[31m/../../etc/shadow"),
                before._replace(offset=chance.getrandbits(chance.choice((12, 40, 63)))),
                before._replace(permissions=chance.choice(("", "r-xp", "rwxp", "---p", "?"))),
                before._replace(start=0),
                before._replace(deleted=True),
                None,
            )
        )
        return FactChange("mapping", number, after)


def _with_facts(command: Sequence[str], recording: Recording, changes: Sequence[Change]) -> Outcome:
    facts, auxv = dict(recording.facts), dict(recording.auxv)
    maps: list[Any] = list(recording.maps)
    tables: dict[str, Any] = {"fact": facts, "auxv": auxv, "mapping": maps}
    for change in changes:
        if isinstance(change, FactChange):
            tables[change.what][change.key] = change.value
    kept = sorted((each for each in maps if each is not None), key=lambda mapping: mapping.start)
    damaged = recording._replace(facts=facts, auxv=auxv, maps=tuple(kept))
    return _opened(command, lambda: recording_reader.from_parts(*recorder.parts(damaged)))


KINDS: tuple[Kind, ...] = (
    MemoryKind("bits", 14),
    MemoryKind("pointers", 18),
    MemoryKind("counts", 8),
    MemoryKind("strings", 8),
    MemoryKind("pages", 6),
    MemoryKind("holes", 6),
    RegisterKind(),
    NamedWordKind(),
    FileKind(),
    ContentsKind(),
    DocumentKind(),
    ElfKind(),
    IndexKind(),
    FactKind(),
)
