"""A real core of meta-mm, words of it replaced by garbage: nothing but typed errors, in time, and no false claim."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import gdbext.diagnosis.session
from gdbext.diagnosis.session import Session
from gdbext.engine.process.memory import Memory
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.errors import MemoryFault
from gdbext.tools import table
from support.fakes.overlay import OverlayTarget
from support.programs.harness import Inferior, Pool
from support.source import contract_schema

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

RUNS = int(os.environ.get("GDBEXT_TEST_GARBAGE", "16"))
SECONDS = 10.0
"""Longer than any command may take on a damaged process, on a slow and busy machine (0.1 s here)."""
WORD = (1 << 64) - 1
COMMANDS = (
    ("dispatch-bt", "--all", "--native", "--why", "--json"),
    ("dispatch-diagnose", "--json"),
    ("all-threads", "--stacks", "--why"),
    ("dispatch-tls", "--json"),
    ("dispatch-op", "aten::mm", "--json"),
    ("dispatch-lookup", "aten::mm", "Meta,AutogradMeta", "--json"),
    ("dispatch-info", "--json"),
)
MANY_OPERATORS = ("dispatch-op", "*mm*", "--json")
"""Takes longer than all the others; in every eighth run."""


class RecordingMemory(Memory):
    """Remembers the words that were used, not only fetched with their page."""

    __slots__ = ()
    used: ClassVar[set[int]] = set()

    def _note(self, address: int, size: int) -> None:
        self.used.update(range(address & ~7, address + min(size, 256), 8))

    def read(self, address: int, size: int) -> bytes:
        self._note(address, size)
        return super().read(address, size)

    def u8(self, address: int) -> int:
        self._note(address, 1)
        return super().u8(address)

    def u64(self, address: int) -> int:
        self._note(address, 8)
        return super().u64(address)

    def words(self, address: int, count: int) -> tuple[int, ...]:
        self._note(address, 8 * count)
        return super().words(address, count)


@dataclass
class Subject:
    """The core, what is true of it, and where the words are that the commands follow."""

    inferior: Inferior
    target: CoreTarget
    stack: range
    steps: set[tuple[int | str, str]]
    words: list[int]


@pytest.fixture(scope="module")
def subject(inferior_pool: Pool) -> Iterator[Subject]:
    inferior = inferior_pool.get("meta-mm")
    target = CoreTarget(str(inferior.core()), "")
    RecordingMemory.used = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gdbext.diagnosis.session, "memory_of", RecordingMemory)
        session = Session(target)
    outcomes = {command: run(session, command) for command in COMMANDS}
    assert all(outcome.status == 0 for outcome in outcomes.values())
    (main, *_) = json.loads(outcomes[COMMANDS[0]].output)["threads"]
    assert main["dispatch"][0]["keyset"]["bits"] == inferior.truth["kernel_keyset"]
    steps = {claim for step in main["dispatch"] for claim in claims(step)}
    top = target.threads()[0].registers()["rsp"]
    words = [word for word in sorted(RecordingMemory.used) if is_readable(target, word)]
    yield Subject(inferior, target, range(top, top + (1 << 20)), steps, words)
    inferior.drop_core()


def run(session: Session, command: tuple[str, ...]) -> table.Outcome:
    return table.execute(command[0], command[1:], lambda: session)


def damage(subject: Subject, random_: random.Random) -> dict[int, bytes]:
    """Some of the words that are followed, replaced: by nothing, pointers to themselves and elsewhere, other words."""
    where = random_.choice(("anywhere", "stack", "elsewhere"))
    words = subject.words
    if where != "anywhere":
        words = [word for word in words if (word in subject.stack) == (where == "stack")]
    chosen = random_.sample(words, min(len(words), random_.choice((1, 3, 10, 100, 1000))))
    return {word: replacement(subject, random_, word).to_bytes(8, "little") for word in chosen}


def replacement(subject: Subject, random_: random.Random, word: int) -> int:
    before = int.from_bytes(subject.target.read(word, 8), "little")
    other = random_.choice(subject.words)
    value: int = random_.choice(
        (
            0,
            1,
            WORD,
            word,
            word - 8,
            other,
            before + 8,
            before - 16,
            before ^ 1 << random_.randrange(64),
            random_.getrandbits(64),
            random_.getrandbits(47),
            int.from_bytes(subject.target.read(other, 8), "little"),
        )
    )
    return value & WORD


@pytest.mark.parametrize("seed", range(RUNS))
def test_garbage_in_what_is_followed(subject: Subject, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDBEXT_DEBUG", "1")
    random_ = random.Random(seed)
    patches = damage(subject, random_)
    holes = [(random_.choice(subject.words) & ~4095, 4096) for _ in range(random_.choice((0, 0, 0, 1, 5)))]
    session = Session(OverlayTarget(subject.target, patches, holes))
    for command in (*COMMANDS, *([MANY_OPERATORS] if seed % 8 == 0 else [])):
        outcome = run(session, command)
        assert "internal error" not in outcome.error, f"{command}: {outcome.error}"
        assert outcome.status == 0 or ("try:" in outcome.error or "why:" in outcome.error), outcome.error
        if "--native" in command and outcome.status == 0:
            document = json.loads(outcome.output)
            contract_schema.check(document)
            check_claims(subject, document, patches)


def is_readable(target: CoreTarget, word: int) -> bool:
    try:
        return len(target.read(word, 8)) == 8
    except MemoryFault:
        return False


def claims(step: Mapping[str, Any]) -> set[tuple[int | str, str]]:
    """A step's keyset, of the frame or of the operator: a damaged return address may cost a frame further in, and the
    damage may be in the operator's name."""
    return {(step["level"], step["keyset"]["bits"]), (step["op"], step["keyset"]["bits"])}


def check_claims(subject: Subject, document: Mapping[str, Any], patches: Mapping[int, bytes]) -> None:
    """What is called exact or verified is the truth, or the very words that were put there."""
    planted = {int.from_bytes(value, "little") for value in patches.values()}
    for thread in document["threads"]:
        for step in thread["dispatch"]:
            if step["confidence"] not in ("exact", "verified") or step["keyset"] is None:
                continue
            true = thread["tid"] == subject.inferior.pid and not subject.steps.isdisjoint(claims(step))
            assert true or int(step["keyset"]["bits"], 16) in planted, f"{step['confidence']} but false: {step}"


def test_an_operators_name_that_drives_a_terminal(subject: Subject) -> None:
    """It stands in the place of aten::mm: the operator is called what the symbols say, and not because of its name."""
    name = b"\x1b[31mm\x07\r"
    patches = {word: name for word in subject.words if subject.target.read(word, 8) == b"aten::mm"}
    assert patches, "the name of aten::mm is read"
    session = Session(OverlayTarget(subject.target, patches))
    for command in (("dispatch-bt", "--why"), ("dispatch-diagnose",), ("all-threads",)):
        outcome = run(session, command)
        text = outcome.output + outcome.error
        assert [char for char in text if not char.isprintable() and char != "\n"] == [], command
        assert "aten::mm" in text, command
        assert ("leads to '\\x1b[31mm\\x07\\r'" in text) == ("--why" in command), command
