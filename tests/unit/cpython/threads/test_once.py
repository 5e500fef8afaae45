"""What a report asks for each of many threads is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from gdbext.cpython.threads.runtime import PythonRuntime
from support.recorded.recordings import Replay


def test_what_many_waits_ask_for_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, read = Counter[str](), Counter[tuple[Hashable, ...]]()
    once = PythonRuntime.once

    def counting(runtime: PythonRuntime, find: Callable[..., Any], *args: Hashable) -> Any:
        def counted(*words: Any) -> Any:
            read[(find.__name__, *words)] += 1
            return find(*words)

        asked[find.__name__] += 1
        counted = keep.setdefault(find, counted)
        return once(runtime, counted, *args)

    keep: dict[Callable[..., Any], Callable[..., Any]] = {}
    monkeypatch.setattr(PythonRuntime, "once", counting)
    Replay("waits").document("all-threads")
    for name in ("_threads_at_rest", "_names_of_code"):
        times = [number for key, number in read.items() if key[0] == name]
        assert set(times) == {1}
        assert asked[name] > len(times)
