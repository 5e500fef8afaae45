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


def test_what_was_copied_is_read_from_the_copy(copy: PageCopy) -> None:
    assert copy.read(START, 16) == DATA[:16]
    assert copy.read(START + PAGE_SIZE - 8, 16) == DATA[PAGE_SIZE - 8 : PAGE_SIZE + 8]
    assert copy.read(START, 2 * PAGE_SIZE) == DATA


@pytest.mark.parametrize(
    ("offset", "size"), [(-8, 16), (2 * PAGE_SIZE - 8, 16), (0, 4 * PAGE_SIZE), (2 * PAGE_SIZE, 8)]
)
def test_what_was_not_copied_whole_is_not(copy: PageCopy, offset: int, size: int) -> None:
    assert copy.read(START + offset, size) is None


def test_the_copy_covers_what_is_read_later(copy: PageCopy) -> None:
    later = b"\x11" * (5 * PAGE_SIZE)
    mixed = copy.over(START - PAGE_SIZE, later)
    assert mixed[:PAGE_SIZE] == later[:PAGE_SIZE]
    assert mixed[PAGE_SIZE : 3 * PAGE_SIZE] == DATA
    assert mixed[3 * PAGE_SIZE : 4 * PAGE_SIZE] == later[:PAGE_SIZE]
    assert mixed[4 * PAGE_SIZE :] == b"\xee" * PAGE_SIZE


def test_parts_of_pages_are_covered(copy: PageCopy) -> None:
    assert copy.over(START + 2 * PAGE_SIZE - 4, b"12345678") == DATA[2 * PAGE_SIZE - 4 : 2 * PAGE_SIZE] + b"5678"
    assert copy.over(START + 3 * PAGE_SIZE - 4, b"12345678") == b"1234" + b"\xee" * 4
    assert copy.over(START - 100, b"12345678") == b"12345678"


def test_neighbouring_pages_are_one_range() -> None:
    assert list(ranges([1, 2, 3, 7, 9, 10], 100)) == [
        (1 * PAGE_SIZE, 4 * PAGE_SIZE),
        (7 * PAGE_SIZE, 8 * PAGE_SIZE),
        (9 * PAGE_SIZE, 11 * PAGE_SIZE),
    ]
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
