"""At which places dispatch-values sees an operator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.tools.values.watching import WatchedOperators


class Watch:
    """Notes what is watched."""

    def __init__(self) -> None:
        self.hooks = 0
        self.seen: list[Any] = []

    def function(self, function: str) -> None:
        self.seen.append(function)

    def boxed_entry(self, entry: str, _is_call: Any) -> None:
        self.seen.append(entry)

    def boxed_calls(self, places: list[int], _operators: Any) -> None:
        self.seen.append("boxed calls")
        self.hooks += len(places)

    def own_lookups(self, *_: Any) -> None:
        self.seen.append("own calls")

    def python_kernels(self, *_: Any) -> None:
        self.seen.append("Python kernels")


@pytest.mark.parametrize(
    ("functions", "entries", "places", "watched"),
    [
        (["call"], ["CPU entry"], [1], ["call", "CPU entry"]),
        ([], ["CPU entry"], [1], ["boxed calls", "own calls", "Python kernels"]),  # autograd's fallback is called first
        ([], ["CPU entry"], [], ["boxed calls", "own calls", "Python kernels", "CPU entry"]),
    ],
)
def test_operators_with_and_without_functions_of_their_own(
    functions: list[str], entries: list[str], places: list[int], watched: list[str]
) -> None:
    made: Any = object.__new__(WatchedOperators)
    made._known, made._boxed, made._sees_boxed_calls = set(), {}, False
    made._watch = Watch()
    made._all_calls = SimpleNamespace(boxed_calls=lambda: places, not_seen=list)
    made._functions = SimpleNamespace(
        functions=lambda _: functions, boxed_entries=lambda _: entries, python_entries=list
    )
    for _ in range(2):
        made._add(SimpleNamespace(address=0x5000))
    assert made._watch.seen == watched
    assert list(made._boxed) == ([] if functions else [0x5000])
