"""Memory that was copied at a stop, laid over what is read later."""

from __future__ import annotations

import pytest

from gdbext.engine.targets.live.stop_copy import PageCopy, parts, ranges
from gdbext.engine.targets.system.linux import PAGE_SIZE

START = 0x7000 * PAGE_SIZE
DATA = bytes(range(256)) * (2 * PAGE_SIZE // 256)


@pytest.fixture
def copy() -> PageCopy:
    return PageCopy([(START, DATA), (START + 3 * PAGE_SIZE, b"\xee" * PAGE_SIZE)])


@pytest.mark.parametrize(
    ("offset", "size", "found"),
    [
        (0, 16, DATA[:16]),
        (PAGE_SIZE - 8, 16, DATA[PAGE_SIZE - 8 : PAGE_SIZE + 8]),
        (0, 2 * PAGE_SIZE, DATA),
        (-8, 16, None),
        (2 * PAGE_SIZE - 8, 16, None),
        (0, 4 * PAGE_SIZE, None),
        (2 * PAGE_SIZE, 8, None),
    ],
)
def test_what_was_copied_whole_is_read_from_the_copy(
    copy: PageCopy, offset: int, size: int, found: bytes | None
) -> None:
    assert copy.read(START + offset, size) == found


def test_the_copy_covers_what_is_read_later(copy: PageCopy) -> None:
    later = b"\x11" * PAGE_SIZE
    assert copy.over(START - PAGE_SIZE, later * 5) == later + DATA + later + b"\xee" * PAGE_SIZE
    assert copy.over(START + 2 * PAGE_SIZE - 4, b"12345678") == DATA[2 * PAGE_SIZE - 4 : 2 * PAGE_SIZE] + b"5678"
    assert copy.over(START + 3 * PAGE_SIZE - 4, b"12345678") == b"1234" + b"\xee" * 4
    assert copy.over(START - 100, b"12345678") == b"12345678"


def test_neighbouring_pages_are_one_range() -> None:
    found = [(start // PAGE_SIZE, end // PAGE_SIZE) for start, end in ranges([1, 2, 3, 7, 9, 10], 100)]
    assert found == [(1, 4), (7, 8), (9, 11)]
    assert list(ranges([1, 2, 3, 7], 2)) == [(PAGE_SIZE, 3 * PAGE_SIZE)]
    assert list(ranges([], 2)) == []


def test_a_later_copy_with_more_pages_may_have_the_same_contents(copy: PageCopy) -> None:
    assert PageCopy([(START, DATA)]).is_part_of(copy)
    assert not copy.is_part_of(PageCopy([(START, DATA)])), "one page is missing"
    assert not PageCopy([(START, DATA[1:] + b"x")]).is_part_of(copy)


def test_the_parts_of_a_read_that_lie_in_some_pages() -> None:
    low, high = 5 * PAGE_SIZE + 100, 8 * PAGE_SIZE + 10
    assert list(parts(low, high - low, {5, 6, 8, 9})) == [
        (low, 6 * PAGE_SIZE),
        (6 * PAGE_SIZE, 7 * PAGE_SIZE),
        (8 * PAGE_SIZE, high),
    ]
