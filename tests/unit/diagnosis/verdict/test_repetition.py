"""Repetitions: the longest one, and folding as a reader would do it by hand."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.verdict.recursion import Repetition, fold, longest
from support.programs.work import lines_run


@pytest.mark.parametrize(
    ("items", "longest_period", "expected"),
    [
        ("xxababababyy", 64, Repetition(2, 2, 4)),
        ("aaaaaaaa", 64, Repetition(0, 1, 8)),
        ("abcdefgh", 64, None),
        ("", 64, None),
        ("abcabcabc", 3, Repetition(0, 3, 3)),
        ("abcabcabc", 2, None),
    ],
)
def test_the_longest_with_its_smallest_period(items, longest_period, expected):
    assert longest(items, longest_period) == expected


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("", []),
        ("abc", [(0, 3, 1)]),
        ("aab", [(0, 3, 1)]),
        ("aaab", [(0, 1, 3), (3, 1, 1)]),
        ("xababab", [(0, 1, 1), (1, 2, 3)]),
        ("aaabbb", [(0, 1, 3), (3, 1, 3)]),
        ("abababa", [(0, 2, 3), (6, 1, 1)]),
        ("aabaabaab", [(0, 3, 3)]),
    ],
)
def test_fold(items, expected):
    assert [tuple(found) for found in fold(items)] == expected


@pytest.mark.parametrize("different", [7, 1000])
def test_bytes_and_numbers_give_the_same(different):
    """Up to 256 different items are compared as bytes, more of them one by one."""
    head = [f"once {number}" for number in range(different)]
    assert list(fold([*head, *"abc" * 5])) == [Repetition(0, different, 1), Repetition(different, 3, 5)]
    assert longest([*head, *"abc" * 5], 8) == Repetition(different, 3, 5)


@pytest.mark.parametrize("different", [3, 20_000])
def test_a_deep_stack_in_linear_time(different):
    items = [number % different for number in range(20_000)]
    assert lines_run(lambda: list(fold(items))) < 3 * len(items)
