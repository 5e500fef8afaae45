"""Sets of ranks as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdbext.diagnosis import job as job_rank
from gdbext.errors import BadData


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((), ""), ((3,), "3"), ((0, 1, 2, 3, 4, 6, 7), "0-4,6-7"), ((7, 0, 7, 2), "0,2,7"), (range(1000), "0-999")],
)
def test_folded(ranks: tuple[int, ...], text: str) -> None:
    assert job_rank.fold(ranks) == text


@given(st.sets(st.integers(0, 300)))
def test_expanded_is_what_was_folded(ranks: set[int]) -> None:
    assert job_rank.expand(job_rank.fold(ranks)) == sorted(ranks)


@pytest.mark.parametrize("text", ["a", "1-", "-1", "2-1", "1,,2", "0-99999999999", "1-2-3", "²"])
def test_refused(text: str) -> None:
    with pytest.raises(BadData):
        job_rank.expand(text)
