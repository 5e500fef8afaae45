"""scripts/measure_probes.py: what it takes for equal, and its page."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest

from support.source import script_module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_module.load("measure_probes")


CALLS = ["aten::mm", "aten::size", "aten::resolve_conj", "aten::add_", "aten::mm"]


@pytest.mark.parametrize(
    ("calls", "tally", "profiled", "reached"),
    [
        (CALLS, {"aten::mm": 2}, ["aten::resolve_conj", "aten::add_"], [True, True]),
        (CALLS, {"aten::mm": 2}, ["aten::add_", "aten::resolve_conj"], [True, False]),
        (CALLS, {"aten::mm": 2}, ["aten::mm", "aten::add_"], [True, False]),
        (CALLS, {"aten::mm": 2}, [], [True, False]),
        (CALLS, {"aten::mm": 3}, ["aten::mm"], [False, True]),
        (["aten::mm_out"], {}, ["aten::mm"], [True, False]),
    ],
)
def test_what_is_compared(
    script: ModuleType, calls: list[str], tally: dict[str, int], profiled: list[str], reached: list[bool]
) -> None:
    truth: dict[int, Any] = {7: (Counter(tally), profiled)}
    figures = list(script.scenes._compared(truth, {7: calls}, 0))
    assert [figure.reached for figure in figures] == reached


def test_the_page_has_a_row_for_each_figure(script: ModuleType) -> None:
    figure = script.scenes._at_most("counting", 1.0, [0.9, 0.8, 1.3], "µs")
    missed = script.scenes._at_most("tracing", 1.0, [1.2], "µs")
    table = script._table({"costs": [figure, missed]})
    assert "| costs | counting | 1 µs | 0.90 µs (0.80 to 1.30, 3 times) | yes |" in table
    assert "| costs | tracing | 1 µs | 1.20 µs (1.20 to 1.20, 1 times) | NO |" in table
