"""Processes to be damaged: what they say undamaged, and which of their memory that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from typing import Any
from unittest.mock import patch

from gdbext.diagnosis.session import Session
from gdbext.engine.process.memory import Memory as ReadMemory
from gdbext.engine.process.memory import memory_of
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.recording import recording_reader
from gdbext.engine.targets.recording.recording import SparseBytes
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.tools import running
from gdbext.tools.outcome import Outcome
from support.recorded import recordings

from .look import Change, Look
from .memory_damage import Memory
from .statements import Evidence, Statement, statements

JUDGED = (
    ("dispatch-bt", "--all", "--native", "--why", "--json"),
    ("dispatch-diagnose", "--why", "--json"),
    ("all-threads", "--stacks", "--why", "--json"),
)
"""What makes statements."""
_OTHERS = """dispatch-bt --all --args|dispatch-bt --all --values --json|dispatch-diagnose --why|all-threads --stacks|
    all-threads --tasks --json|dispatch-tls|dispatch-tls --json|dispatch-info --json|dispatch-info --settings|
    dispatch-collectives --json|dispatch-autograd --json|dispatch-compile --json|dispatch-op aten::mm --json|
    dispatch-lookup aten::mm Meta,AutogradMeta --json|dispatch-tensor --py x --json"""
OTHERS = tuple(tuple(line.split()) for line in _OTHERS.split("|"))


def look(command: Sequence[str], open_target: Callable[[], Target]) -> Outcome:
    """The command on a target, which is closed then."""
    with ExitStack() as opened:

        def open_session() -> Session:
            target = open_target()
            opened.callback(target.close)
            return Session(target)

        return running.execute(command[0], command[1:], open_session)


class Subject:
    """What all commands together state of an undamaged process, and the memory that they use: ``known`` is all of it,
    or what gives it of those words."""

    def __init__(
        self, name: str, run: Callable[[Sequence[str]], Outcome], known: SparseBytes | Callable[[set[int]], SparseBytes]
    ) -> None:
        self.name = name
        self.truth: dict[Statement, Evidence] = {}
        with _words_used() as used:
            for command in JUDGED:
                self.truth.update(statements(run(command).output))
        self.memory = Memory(known if isinstance(known, SparseBytes) else known(used), used)

    def look(
        self,
        command: tuple[str, ...],
        changes: Sequence[Change],
        open_target: Callable[[Sequence[Change]], Target],
        is_judged: bool = False,
    ) -> Look:
        truth = self.truth if is_judged and command in JUDGED else None
        return Look(self.name, command, changes, lambda kept: look(command, lambda: open_target(kept)), truth)


@contextmanager
def _words_used() -> Iterator[set[int]]:
    """The words that looks use meanwhile, and not only fetch with their page."""
    used: set[int] = set()

    def noting(target: Target) -> ReadMemory:
        def noted(name: str, width: int) -> Callable[..., Any]:
            def method(self: ReadMemory, address: int, size: int = width) -> Any:
                used.update(range(address & ~7, address + min(size, 256), 8))
                return getattr(super(kind, self), name)(address, *([] if width else [size]))

            return method

        widths = {"read": 0, "u8": 1, "u64": 8, "pointer": 8}
        methods = {name: noted(name, width) for name, width in widths.items()}
        kind: Any = type("NotingMemory", (type(memory_of(target)),), {"__slots__": (), **methods})
        found: ReadMemory = kind(target)
        return found

    with patch("gdbext.diagnosis.session.memory_of", noting):
        yield used


class Recorded(Subject):
    def __init__(self, name: str) -> None:
        self.recording = recording_reader.load(str(recordings.FOLDER / f"{name}.rec"))
        open_session = cache(lambda: Session(ReplayTarget(self.recording)))  # once for all commands, and no sooner
        super().__init__(name, lambda words: running.execute(words[0], words[1:], open_session), self.recording.memory)


NAMES = [name for name in recordings.names() if name != "boxed-recursion-fallback-0"]
"""Without the one whose stack of 58,000 frames takes seconds."""
SHARES = [1 / (recordings.FOLDER / f"{name}.rec").stat().st_size for name in NAMES]
"""Small ones more often: looks at them take a tenth of the time."""


recorded = lru_cache(maxsize=3)(Recorded)
