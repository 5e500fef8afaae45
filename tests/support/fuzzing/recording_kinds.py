"""Damaged recordings: the memory and registers of the recorded process, and the file that holds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Any

from gdbext.engine.targets.recording import container, recorder, recording_reader
from gdbext.engine.targets.recording.recording import Recording, SparseBytes
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from support.recorded import recordings

from . import json_damage, memory_damage, subjects
from .byte_damage import Bytes, damage_bytes, overwrite, with_bytes
from .look import Change, Kind, Look
from .memory_damage import DAMAGES, PAGE
from .subjects import Recorded

Plan = tuple[Sequence[Change], Callable[[Sequence[Change]], Recording]]
"""The damage, and who opens what is damaged."""


def _kind(name: str, share: int, plan: Callable[[Recorded, Random], Plan], is_judged: bool = False) -> Kind:
    """``is_judged``: the process is damaged, and not the file that holds it."""

    def look(chance: Random, block: Random) -> Look:
        found = subjects.recorded(block.choices(subjects.NAMES, subjects.SHARES)[0])
        # mostly a command that makes statements
        command = chance.choice(subjects.JUDGED if chance.random() < 0.7 else subjects.OTHERS)
        changes, load = plan(found, chance)
        return found.look(command, changes, lambda kept: ReplayTarget(load(kept)), is_judged)

    return Kind(name, share, look)


def _on_process(name: str, share: int, damage: Callable[[Recorded, Random], Sequence[Change]]) -> Kind:
    def plan(found: Recorded, chance: Random) -> Plan:
        return damage(found, chance), partial(memory_damage.damaged, found.recording)

    return _kind(name, share, plan, is_judged=True)


def _memory(name: str, found: Recorded, chance: Random) -> Sequence[Change]:
    return DAMAGES[name](found.memory, chance)


def _named_words(found: Recorded, chance: Random) -> Sequence[Change]:
    numbers = sorted({each for evidence in found.truth.values() for each in evidence.numbers if each >= PAGE})
    return memory_damage.named(found.memory, found.recording, numbers, chance)


def _bytes(found: Recorded, chance: Random) -> Plan:
    """The file: its header, and the compressed stream behind it."""
    data = _file(found.name)
    changes = damage_bytes(chance, 0, container.HEADER.size if chance.random() < 0.5 else len(data), len(data))
    return changes, lambda kept: recording_reader.decode(with_bytes(data, kept))


def _contents(found: Recorded, chance: Random) -> Plan:
    """Bytes behind a right header: the document, tables of blocks."""
    contents = _contents_of(found.name)
    size = int.from_bytes(contents[:4], "little") + 8
    end = chance.choice((8, size, size, min(len(contents), size + 4096), len(contents)))
    changes = damage_bytes(chance, 0 if end == 8 else 8, end, len(contents))
    return changes, lambda kept: recording_reader.recording_from(*container.parse(with_bytes(contents, kept)))


def _document(found: Recorded, chance: Random, **how: Any) -> Plan:
    document, blocks = _parts(found.name)
    changes = json_damage.damage_json(document, chance, **how)
    return changes, lambda kept: recording_reader.recording_from(json_damage.with_changes(document, kept), blocks)


@lru_cache(maxsize=2)
def _file(name: str) -> bytes:
    return (recordings.FOLDER / f"{name}.rec").read_bytes()


_contents_of = lru_cache(maxsize=2)(lambda name: container.unwrap(_file(name)))


@lru_cache(maxsize=2)
def _parts(name: str) -> tuple[Any, list[SparseBytes]]:
    document, blocks = recorder.document_and_blocks(subjects.recorded(name).recording)
    return json.loads(json.dumps(document)), blocks


@dataclass(frozen=True)
class InBlock(Change):
    """``change`` is to the bytes of a block: an ELF file, or an array of its symbol index."""

    block: int
    change: Bytes


def _blocks(found: Recorded, chance: Random) -> Plan:
    """Headers, unwind tables, code and symbols of the ELF files in it, and the arrays of their indexes."""
    document, blocks = _parts(found.name)
    usable = [number for number, block in enumerate(blocks[:-1]) if block.pieces]  # the last one is the memory
    changes: list[Change] = []
    for _ in range(chance.choice((1, 1, 3, 20)) if usable else 0):
        number = chance.choice(usable)
        start, piece = chance.choice(list(blocks[number]))
        size = start + len(piece)
        changes += [InBlock(number, change) for change in overwrite(chance, start, size, size)]

    def load(kept: Sequence[Change]) -> Recording:
        damaged = list(blocks)
        for each in kept:
            if isinstance(each, InBlock):
                writes = [(each.change.offset, each.change.data)]
                damaged[each.block] = memory_damage.overwritten(damaged[each.block], writes)
        return recording_reader.recording_from(document, damaged)

    return changes, load


_SYSTEM = ("facts", "facts", "maps", "auxv", "kept")
_ON_MEMORY = {"bits": 14, "pointers": 18, "counts": 8, "strings": 8, "pages": 6, "holes": 6}
KINDS = (
    *(_on_process(f"memory-{name}", share, partial(_memory, name)) for name, share in _ON_MEMORY.items()),
    _on_process("registers", 10, lambda found, chance: memory_damage.registers(found.recording, found.memory, chance)),
    _on_process("memory-named", 10, _named_words),
    _kind("recording-bytes", 4, _bytes),
    _kind("recording-contents", 6, _contents),
    _kind("recording-document", 8, _document),
    _kind("recording-files", 6, partial(_document, hows=json_damage.TAME, above=("files", "modules", "threads"))),
    _kind("recording-facts", 6, partial(_document, hows=json_damage.TAME, above=_SYSTEM)),
    _kind("recording-blocks", 8, _blocks),
)
