"""Damaged recordings: the memory and registers of the recorded process, and the file that holds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Any

from gdbext.engine.targets.recording import container, recorder, recording_reader
from gdbext.engine.targets.recording.recording import RecordedFile, Recording, SparseBytes
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.tools.table import Outcome
from support.recorded import recordings

from . import json_damage, memory_damage, subjects
from .byte_damage import Bytes, damage_bytes, with_bytes
from .look import Change, Kind, Look
from .memory_damage import PAGE, overwritten
from .subjects import Subject

Plan = tuple[Sequence[Change], Callable[[Sequence[Change]], Recording]]
"""The damage, and who opens what is damaged."""


def _kind(name: str, share: int, text: str, plan: Callable[[Subject, Random], Plan], is_judged: bool = False) -> Kind:
    """``is_judged``: the process is damaged, and not the file that holds it."""

    def look(chance: Random, block: Random) -> Look:
        found = subjects.subject(subjects.name_for(block))
        command = subjects.some_command(chance)
        changes, load = plan(found, chance)
        truth = found.truth if is_judged and command in subjects.JUDGED else None
        return Look(found.name, command, changes, partial(_opened, command, load), truth)

    return Kind(name, share, text, look)


def _opened(
    command: Sequence[str], load: Callable[[Sequence[Change]], Recording], changes: Sequence[Change]
) -> Outcome:
    return subjects.look(command, lambda: ReplayTarget(load(changes)))


def _memory(name: str, found: Subject, chance: Random) -> Plan:
    changes = memory_damage.DAMAGES[name](found.memory, chance)
    return changes, partial(memory_damage.damaged, found.recording)


def _named_words(found: Subject, chance: Random) -> Plan:
    numbers = sorted({each for evidence in found.truth.values() for each in evidence.numbers if each >= PAGE})
    changes = memory_damage.named(found.memory, found.recording, numbers, chance)
    return changes, partial(memory_damage.damaged, found.recording)


def _registers(found: Subject, chance: Random) -> Plan:
    changes = memory_damage.registers(found.recording, found.memory, chance)
    return changes, partial(memory_damage.damaged, found.recording)


def _bytes(found: Subject, chance: Random) -> Plan:
    data = _file(found.name)
    end = container.HEADER.size if chance.random() < 0.5 else len(data)
    changes = damage_bytes(chance, 0, end, len(data))
    return changes, lambda kept: recording_reader.decode(with_bytes(data, kept))


def _contents(found: Subject, chance: Random) -> Plan:
    contents = _unwrapped(found.name)
    size = int.from_bytes(contents[:4], "little") + 8
    end = chance.choice((8, size, size, min(len(contents), size + 4096), len(contents)))
    changes = damage_bytes(chance, 0 if end == 8 else 8, end, len(contents))
    return changes, lambda kept: recording_reader.from_parts(*container.parse(with_bytes(contents, kept)))


def _document(found: Subject, chance: Random) -> Plan:
    document, blocks = _parts(found.name)
    changes = json_damage.damage_json(document, chance)
    return changes, lambda kept: recording_reader.from_parts(json_damage.with_changes(document, kept), blocks)


@lru_cache(maxsize=2)
def _file(name: str) -> bytes:
    return (recordings.FOLDER / f"{name}.rec").read_bytes()


@lru_cache(maxsize=2)
def _unwrapped(name: str) -> bytes:
    return container.unwrap(_file(name))


@lru_cache(maxsize=2)
def _parts(name: str) -> tuple[Any, list[SparseBytes]]:
    document, blocks = recorder.parts(subjects.subject(name).recording)
    return json.loads(json.dumps(document)), blocks


def _as_read(recording: Recording) -> Recording:
    """As if it came from a file: checked."""
    return recording_reader.from_parts(*recorder.parts(recording))


@dataclass(frozen=True)
class InFile(Change):
    """``change`` is to the bytes of a file of the recording, or to an array of its symbol index."""

    file: int
    array: tuple[str, int] | None
    change: Bytes


@dataclass(frozen=True)
class Count(Change):
    file: int
    array: tuple[str, int]
    count: int


def _elf_files(found: Subject, chance: Random) -> Plan:
    files = found.recording.files
    changes: list[Change] = []
    for _ in range(chance.choice((1, 1, 3, 20)) if files else 0):
        number = chance.randrange(len(files))
        changes += _in_block(files[number].contents, number, None, chance)
    return changes, partial(_with_files, found.recording)


def _indexes(found: Subject, chance: Random) -> Plan:
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
    return changes, partial(_with_files, found.recording)


def _in_block(block: SparseBytes, file: int, array: tuple[str, int] | None, chance: Random) -> list[Change]:
    if not block.pieces:
        return []
    index = chance.randrange(len(block.pieces))
    start, size = block.starts[index], len(block.pieces[index])
    found = damage_bytes(chance, start, start + size, start + size, cuts=False)
    return [InFile(file, array, each) for each in found if isinstance(each, Bytes)]


def _with_files(recording: Recording, changes: Sequence[Change]) -> Recording:
    files = list(recording.files)
    for change in changes:
        if isinstance(change, (InFile, Count)):
            files[change.file] = _changed(files[change.file], change)
    return _as_read(recording._replace(files=tuple(files)))


def _changed(file: RecordedFile, change: InFile | Count) -> RecordedFile:
    writes = [(change.change.offset, change.change.data)] if isinstance(change, InFile) else []
    if change.array is None:
        return file._replace(contents=overwritten(file.contents, writes))
    kind, which = change.array
    pair = list(file.arrays[kind])
    length = change.count if isinstance(change, Count) else pair[which].length
    pair[which] = pair[which]._replace(length=length, contents=overwritten(pair[which].contents, writes))
    return file._replace(arrays={**file.arrays, kind: (pair[0], pair[1])})


@dataclass(frozen=True)
class FactChange(Change):
    """What the recording has of the system by that name, or of the auxiliary vector, or a line of the memory map."""

    what: str
    key: Any
    value: Any


_WRONG_TYPES: tuple[Any, ...] = ("", "\0", "7 (x) S " * 20, ["x"], [], None, -1.5, 1e300, "0x")
_WRONG_TEXTS = ("__version__ = '2.13.0'\n" * 3, "9" * 400, "\x1b[2J", ["../../etc/passwd", "1", "-1", "99999999999"])
_GARBAGE = (*_WRONG_TYPES, *_WRONG_TEXTS, "Name:\tx\nState:\tS", "-1 -1 -1", "/proc/self/mem")


def _facts(found: Subject, chance: Random) -> Plan:
    changes: list[Change] = []
    for _ in range(chance.choice((1, 2, 10, 100))):
        changes.append(chance.choice((_fact, _fact, _auxv, _mapping))(found.recording, chance))
    return changes, partial(_with_facts, found.recording)


def _fact(recording: Recording, chance: Random) -> FactChange:
    name = chance.choice(sorted(recording.facts))
    before = recording.facts[name]
    if isinstance(before, str) and before and chance.random() < 0.5:
        raw = bytearray(before.encode())
        raw[chance.randrange(len(raw))] = chance.randrange(256)
        return FactChange("fact", name, raw.decode("utf-8", "replace"))
    return FactChange("fact", name, chance.choice(_GARBAGE))


def _auxv(recording: Recording, chance: Random) -> FactChange:
    key = chance.choice(sorted(recording.auxv) or [3])
    return FactChange("auxv", key, chance.choice((0, 1, chance.getrandbits(64), chance.getrandbits(47), 1 << 62)))


def _mapping(recording: Recording, chance: Random) -> FactChange:
    number = chance.randrange(len(recording.maps))
    before = recording.maps[number]
    choices = (
        before._replace(end=before.start + chance.choice((1, 4096, 1 << 46))),
        before._replace(path=chance.choice(recording.maps).path),
        before._replace(path="\x1b[31m/../../etc/shadow"),
        before._replace(offset=chance.getrandbits(chance.choice((12, 40, 63)))),
        before._replace(permissions=chance.choice(("", "r-xp", "rwxp", "---p", "?"))),
        before._replace(start=0),
        before._replace(deleted=True),
        None,
    )
    return FactChange("mapping", number, chance.choice(choices))


def _with_facts(recording: Recording, changes: Sequence[Change]) -> Recording:
    facts, auxv, maps = dict(recording.facts), dict(recording.auxv), dict(enumerate(recording.maps))
    tables: dict[str, dict[Any, Any]] = {"fact": facts, "auxv": auxv, "mapping": maps}
    for change in changes:
        if isinstance(change, FactChange):
            tables[change.what][change.key] = change.value
    kept = sorted((each for each in maps.values() if each is not None), key=lambda mapping: mapping.start)
    return _as_read(recording._replace(facts=facts, auxv=auxv, maps=tuple(kept)))


_SHARES = {"bits": 14, "pointers": 18, "counts": 8, "strings": 8, "pages": 6, "holes": 6}
_ON_MEMORY = tuple(
    _kind(f"memory-{name}", share, str(memory_damage.DAMAGES[name].__doc__), partial(_memory, name), True)
    for name, share in _SHARES.items()
)
KINDS = (
    *_ON_MEMORY,
    _kind("registers", 10, "What its threads have in their registers.", _registers, True),
    _kind("memory-named", 10, "The words of the locks that its reports name.", _named_words, True),
    _kind("recording-bytes", 4, "The file: its header, and the compressed stream behind it.", _bytes),
    _kind("recording-contents", 6, "Bytes behind a right header: the document, tables of blocks.", _contents),
    _kind("recording-document", 8, "Members of the document: others, missing, of another type.", _document),
    _kind("recording-elf", 8, "Headers, unwind tables, code and symbols of the ELF files in it.", _elf_files),
    _kind("recording-indexes", 6, "The arrays of the symbol indexes: numbers, and how many.", _indexes),
    _kind("recording-facts", 6, "Answers of /proc, small files, the memory map, the auxiliary vector.", _facts),
)
