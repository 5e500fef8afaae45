"""Sets of ranks as text."""

from __future__ import annotations

import pytest

from gdbext.engine import rank_sets
from gdbext.errors import BadData


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((), ""), ((3,), "3"), ((0, 1, 2, 3, 4, 6, 7), "0-4,6-7"), ((7, 0, 7, 2), "0,2,7"), (range(1000), "0-999")],
)
def test_folded_and_expanded(ranks: tuple[int, ...], text: str) -> None:
    assert rank_sets.fold(ranks) == text
    assert rank_sets.expand(text) == sorted({*ranks})


@pytest.mark.parametrize("text", ["a", "1-", "-1", "2-1", "1,,2", "0-99999999999", "1-2-3", "²"])
def test_refused(text: str) -> None:
    with pytest.raises(BadData):
        rank_sets.expand(text)
