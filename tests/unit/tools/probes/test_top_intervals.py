"""dispatch-top between two reports: it learns names while the process is there, and ends with it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.tools.probes import top


class World:
    """A process that is there until that second, and a user who interrupts at that one."""

    def __init__(self, ends: float = 1e9, interrupted: float = 1e9) -> None:
        self.now = 0.0
        self.ends = ends
        self.interrupted = interrupted

    def sleep(self, seconds: float) -> bool:
        self.now += seconds
        return self.now < self.interrupted

    def ending(self) -> Ending | None:
        return Ending(EndingKind.GONE, "the process ended") if self.now >= self.ends else None


@pytest.mark.parametrize(
    ("world", "over", "learnt"),
    [(World(), True, 3), (World(ends=2), False, 1), (World(ends=0), False, 0), (World(interrupted=2.5), False, 2)],
)
def test_it_learns_until_the_process_ends(
    world: World, over: bool, learnt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=lambda: world.now))
    calls: list[float] = []
    assert top._counted(2.5, world, world, lambda: calls.append(world.now)) is over  # type: ignore[arg-type]
    assert len(calls) == learnt
