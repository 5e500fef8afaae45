"""Damaged and hostile recordings: every command gives a report or a clear error, and never an internal one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.recording import container, recorder, recording_reader
from gdbext.engine.targets.recording.recording import RecordedFile, RecordedThread, Recording, SparseBytes
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.errors import BadRecording
from gdbext.tools import running
from support.fuzzing.byte_damage import scatter
from support.recorded.recordings import Replay, recording

COMMANDS = (
    ("dispatch-diagnose", "--why"),
    ("dispatch-diagnose", "--json"),
    ("dispatch-bt", "--all", "--native"),
    ("all-threads", "--stacks", "--json"),
    ("dispatch-tls",),
    ("dispatch-info", "--json"),
)
SCENARIOS = ("python-lock-abba", "gil-mutex")

Damage = Callable[[Recording, random.Random], Recording]


def flipped(block: SparseBytes, source: random.Random, each: int) -> SparseBytes:
    """About one byte in ``each`` is another."""
    pieces = []
    for piece in block.pieces:
        changed = bytearray(piece)
        scatter(changed, 0, len(changed), source.randrange(2 * len(piece) // each + 1), source)
        pieces.append(bytes(changed))
    return SparseBytes(block.starts, pieces)


def memory_thinned(found: Recording, source: random.Random) -> Recording:
    """One piece in ten is missing."""
    return found._replace(memory=SparseBytes.merged([piece for piece in found.memory if source.random() > 0.1]))


def memory_flipped(found: Recording, source: random.Random) -> Recording:
    return found._replace(memory=flipped(found.memory, source, 200))


def memory_filled(found: Recording, source: random.Random) -> Recording:
    """Some pages hold nothing but one byte: pointers to nowhere, endless strings, lists without an end."""
    fill = source.choice((0, 1, 0x41, 0xFF))
    pieces = [bytes([fill]) * len(piece) if source.random() < 0.1 else piece for piece in found.memory.pieces]
    return found._replace(memory=SparseBytes(found.memory.starts, pieces))


def registers_random(found: Recording, source: random.Random) -> Recording:
    def changed(thread: RecordedThread) -> RecordedThread:
        values = {
            name: source.choice((value, source.getrandbits(64), source.randrange(1 << 47), 0, (1 << 64) - 1))
            for name, value in thread.registers.items()
        }
        return thread._replace(registers=values)

    return found._replace(threads=tuple(map(changed, found.threads)))


def maps_changed(found: Recording, source: random.Random) -> Recording:
    kept = [mapping for mapping in found.maps if source.random() > 0.1]
    moved = [
        mapping._replace(end=mapping.start + source.choice((1, 4096, mapping.end - mapping.start, 1 << 46)))
        for mapping in kept
    ]
    return found._replace(maps=tuple(sorted(moved, key=lambda mapping: mapping.start)))


def files_flipped(found: Recording, source: random.Random) -> Recording:
    def changed(file: RecordedFile) -> RecordedFile:
        return file._replace(contents=flipped(file.contents, source, 100))

    return found._replace(files=tuple(map(changed, found.files)))


def facts_changed(found: Recording, source: random.Random) -> Recording:
    garbage = ("", "\0", "7 (x) S " * 20, ["x"], [], None, -1.5, "0x")
    facts = {name: source.choice((value, *garbage)) for name, value in found.facts.items()}
    return found._replace(facts=facts, auxv={key: source.getrandbits(64) for key in found.auxv})


DAMAGES = (memory_flipped, memory_filled, memory_thinned, registers_random, maps_changed, files_flipped, facts_changed)


def assert_no_internal_error(recording: Recording) -> None:
    session = Session(ReplayTarget(recording))
    for command, *words in COMMANDS:
        outcome = running.execute(command, words, lambda: session)
        assert "internal error" not in outcome.error + outcome.output, outcome.error + outcome.output[-2000:]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_damaged_process_costs_fields(name: str, damage: Damage) -> None:
    assert_no_internal_error(damage(recording(name), random.Random(0)))


@pytest.mark.parametrize("name", SCENARIOS)
def test_damaged_contents_of_the_file(name: str) -> None:
    """Behind a header that is right: whatever the reader lets through is a target like any other."""
    contents = container.unwrap(recorder.encode(recording(name), preset=0))
    for seed in range(15):
        source = random.Random(seed)
        damaged = bytearray(contents)
        scatter(damaged, 0, len(damaged), source.choice((1, 10, 1000)), source)
        try:
            found = recording_reader.recording_from(*container.parse(bytes(damaged)))
        except BadRecording:
            continue
        assert_no_internal_error(found)
        return
    pytest.fail("none of them can be read")


NAME = "forked-lock-3.12"
"""A process that was forked while another thread held a lock: which parent it is a copy of is told by /proc."""
GARBAGE = ("", "\0", "7 (x) S " * 20, "7 (x) S " + "9" * 5000 + " 9" * 50, "0x12z", "-1", "\u0661\u0662")


@pytest.mark.parametrize("garbage", GARBAGE, ids=["empty", "nul", "many", "digits", "letters", "negative", "arabic"])
def test_each_file_damaged(garbage: str) -> None:
    whole = recording(NAME)
    names = [name for name in whole.facts if name.startswith("text /proc")]
    assert any(name.endswith("personality") for name in names)
    for damaged in [*([name] for name in names), names]:
        facts = {**whole.facts, **dict.fromkeys(damaged, garbage)}
        for command in ("dispatch-diagnose", "all-threads"):
            Replay(NAME, whole._replace(facts=facts)).document(command)
