"""One look: a command on a damaged target; and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from gdbext.tools.outcome import Outcome

from .statements import Truth

BLOCK = 40
"""So many looks in a row, by their seeds, are at the same subject: it is read and understood once for all of them."""


@dataclass(frozen=True)
class Change:
    """A part of the damage that can be left out by itself."""

    @property
    def words(self) -> Sequence[int]:
        """The numbers that stand in the place of what was changed, of every width that they may be read with."""
        return ()

    @property
    def texts(self) -> Sequence[str]:
        return ()

    def is_near(self, address: int) -> bool:  # noqa: ARG002
        return False


@dataclass
class Look:
    """What is to be run. ``run`` gets the changes, or some of them; ``truth`` is None where nothing is compared."""

    subject: str
    command: tuple[str, ...]
    changes: Sequence[Change]
    run: Callable[[Sequence[Change]], Outcome]
    truth: Truth | None = None

    @property
    def title(self) -> str:
        return f"{' '.join(self.command)} on {self.subject}, changes: {len(self.changes)}"


@dataclass
class Kind:
    """A kind of damage; ``share`` is its part of a campaign. ``plan`` makes a look of two sources of chance: the look's
    own, and that of a block of looks, which chooses what they are at."""

    name: str
    share: int
    plan: Callable[[Random, Random], Look]

    def look(self, seed: int) -> Look:
        return self.plan(Random(f"{self.name}:{seed}"), Random(f"{self.name} block {seed // BLOCK}"))

    def close(self) -> None:
        """End what was started; idempotent."""


@dataclass
class Result:
    """``failures`` are (what kind of failure, what exactly)."""

    kind: str
    seed: int
    title: str
    failures: list[tuple[str, str]] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)
    """False statements that the damage itself makes."""
    status: int = 0
    seconds: float = 0.0
    megabytes: int = 0
    smallest: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.seed}"
