"""Libraries that are loaded while dispatches are counted: asked for once, in a session that knows them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.errors import BadData
from gdbext.tools.probes import trace_places
from gdbext.tools.probes.trace_places import LatePlaces


class Session:
    """Of a process whose maps change; ``number`` tells it from those that are opened anew."""

    def __init__(self, maps: list[MemoryMapping], number: int = 0) -> None:
        self.target = SimpleNamespace(maps=lambda: maps)
        self.number = number

    def reopened(self, target: Any) -> Session:
        return Session(target.maps(), self.number + 1)


def mapped(path: str, permissions: str = "r-xp") -> MemoryMapping:
    return MemoryMapping(0x1000, 0x2000, 0, path, permissions)


def test_each_library_once_and_one_that_cannot_be_read_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    class Places:
        def __init__(self, session: Session) -> None:
            self.session = session
            self.unseen = Counter(lib=session.number)

        def of_libraries(self, paths: frozenset[str], filtered: bool) -> list[tuple[int, list[str], bool]]:
            if paths == {"/ext/torn.so"}:
                raise BadData("it is torn")
            return [(self.session.number, sorted(paths), filtered)]

    monkeypatch.setattr(trace_places, "TracePlaces", Places)
    maps = [mapped("/lib/torch.so")]
    late = LatePlaces(Session(maps), True)  # type: ignore[arg-type]
    assert late.found() == ()
    maps += [mapped("/ext/a.so"), mapped("/ext/a.so", "rw-p"), mapped("/ext/data", "r--p"), mapped("")]
    assert late.found() == [(1, ["/ext/a.so"], True)]
    assert late.found() == ()
    maps += [mapped("/ext/b.so")]
    assert late.found() == [(2, ["/ext/b.so"], True)]
    assert late.unseen == {"lib": 1 + 2}
    maps += [mapped("/ext/torn.so")]
    for _ in range(3):
        with pytest.raises(BadData):
            late.found()
    assert late.found() == ()
