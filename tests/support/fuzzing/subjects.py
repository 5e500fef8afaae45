"""Recorded processes to be damaged: what they say undamaged, and which of their memory that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from random import Random
from unittest.mock import patch

from gdbext.diagnosis.session import Session
from gdbext.engine.process.memory import Memory as ReadMemory
from gdbext.engine.process.memory import memory_of
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.recording import recording_reader
from gdbext.engine.targets.recording.recording import Recording
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.tools import table
from gdbext.tools.table import Outcome
from support.recorded import recordings

from .memory_damage import Memory
from .statements import Evidence, Statement, of_output

JUDGED = (
    ("dispatch-bt", "--all", "--native", "--why", "--json"),
    ("dispatch-diagnose", "--why", "--json"),
    ("all-threads", "--stacks", "--why", "--json"),
)
"""What makes statements."""
_OTHERS = (
    "dispatch-bt --all --args|dispatch-bt --all --values --json|dispatch-diagnose --why|all-threads --stacks|"
    "all-threads --tasks --json|dispatch-tls|dispatch-tls --json|dispatch-info --json|dispatch-info --settings|"
    "dispatch-collectives --json|dispatch-autograd --json|dispatch-compile --json|dispatch-op aten::mm --json|"
    "dispatch-lookup aten::mm Meta,AutogradMeta --json|dispatch-tensor --py x --json"
)
OTHERS = tuple(tuple(line.split()) for line in _OTHERS.split("|"))


def some_command(chance: Random) -> tuple[str, ...]:
    """Mostly one that makes statements."""
    return chance.choice(JUDGED if chance.random() < 0.7 else OTHERS)


def look(command: Sequence[str], open_target: Callable[[], Target]) -> Outcome:
    """The command on a target, which is closed then."""
    with ExitStack() as opened:

        def open_session() -> Session:
            target = open_target()
            opened.callback(target.close)
            return Session(target)

        return table.execute(command[0], command[1:], open_session)


def execute(command: Sequence[str], recording: Recording) -> Outcome:
    return look(command, lambda: ReplayTarget(recording))


def understood(run: Callable[[Sequence[str]], Outcome]) -> tuple[dict[Statement, Evidence], set[int]]:
    """What an undamaged target states, and the words of its memory that this takes; ``run`` runs a command on it."""
    truth: dict[Statement, Evidence] = {}
    with words_used() as used:
        for command in JUDGED:
            truth.update(of_output(run(command).output))
    return truth, used


@contextmanager
def words_used() -> Iterator[set[int]]:
    """The words that looks use meanwhile, and not only fetch with their page."""
    used: set[int] = set()

    def note(address: int, size: int) -> None:
        used.update(range(address & ~7, address + min(size, 256), 8))

    def noting(target: Target) -> ReadMemory:
        class NotingMemory(type(memory_of(target))):  # type: ignore[misc]
            __slots__ = ()

            def read(self, address: int, size: int) -> bytes:
                note(address, size)
                found: bytes = super().read(address, size)
                return found

            def u8(self, address: int) -> int:
                note(address, 1)
                found: int = super().u8(address)
                return found

            def u64(self, address: int) -> int:
                note(address, 8)
                found: int = super().u64(address)
                return found

            pointer = u64

        return NotingMemory(target)

    with patch("gdbext.diagnosis.session.memory_of", noting):
        yield used


class Subject:
    """A recording, what all commands together state of it, and the memory that they use."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.recording = recording_reader.load(str(recordings.FOLDER / f"{name}.rec"))
        open_session = cache(lambda: Session(ReplayTarget(self.recording)))  # once for all commands, and no sooner
        self.truth, used = understood(lambda command: table.execute(command[0], command[1:], open_session))
        self.memory = Memory(self.recording.memory, used)


_SLOW = {"boxed-recursion-fallback-0": 20}
"""Reports of a stack of 58,000 frames take seconds, undamaged: it is looked at so many times less often."""
NAMES = recordings.names()
SHARES = [1 / (recordings.FOLDER / f"{name}.rec").stat().st_size / _SLOW.get(name, 1) for name in NAMES]
"""Small ones more often: looks at them take a tenth of the time."""


def name_for(chance: Random) -> str:
    return chance.choices(NAMES, SHARES)[0]


@lru_cache(maxsize=3)
def subject(name: str) -> Subject:
    return Subject(name)
