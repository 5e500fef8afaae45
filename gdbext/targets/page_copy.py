"""Pieces of memory as they were at one moment."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator

from gdbext.targets.system.linux import PAGE_SIZE


class PageCopy:
    """Copies of whole pages: each piece is an address, a multiple of the page size, and its bytes."""

    def __init__(self, pieces: Iterable[tuple[int, bytes | memoryview]] = ()) -> None:
        self._pages: dict[int, memoryview] = {}
        for start, data in pieces:
            view = memoryview(data)
            first = start // PAGE_SIZE
            for index in range(len(data) // PAGE_SIZE):
                self._pages[first + index] = view[index * PAGE_SIZE : (index + 1) * PAGE_SIZE]

    def page(self, number: int) -> bytes | None:
        """The page at ``number`` times the page size, None unless it was copied."""
        found = self._pages.get(number)
        return None if found is None else bytes(found)

    def read(self, address: int, size: int) -> bytes | None:
        """``size`` bytes at ``address``, None unless all of them were copied."""
        first, offset = divmod(address, PAGE_SIZE)
        last = (address + size - 1) // PAGE_SIZE
        pages = self._pages
        if first not in pages or last not in pages:
            return None
        found = [pages.get(number) for number in range(first, last + 1)]
        if None in found:
            return None
        return b"".join(page for page in found if page is not None)[offset : offset + size]

    def is_part_of(self, other: PageCopy, same: Callable[[bytes, bytes], bool] = operator.eq) -> bool:
        """All pages of this copy are in the other one, with the ``same`` contents."""
        return all(
            found is not None and same(bytes(page), found)
            for page, found in ((page, other.page(number)) for number, page in self._pages.items())
        )

    def over(self, address: int, data: bytes) -> bytes:
        """``data``, read at ``address``, with the copy in place of what was copied of it."""
        first, last = address // PAGE_SIZE, (address + len(data) - 1) // PAGE_SIZE
        copied = [number for number in range(first, last + 1) if number in self._pages]
        if not copied:
            return data
        mixed = bytearray(data)
        for number in copied:
            low = max(number * PAGE_SIZE, address)
            high = min((number + 1) * PAGE_SIZE, address + len(data))
            start = number * PAGE_SIZE
            mixed[low - address : high - address] = self._pages[number][low - start : high - start]
        return bytes(mixed)


def pages_of(address: int, size: int) -> range:
    """The numbers of the pages that ``size`` bytes at ``address`` lie in."""
    return range(address // PAGE_SIZE, -(-(address + size) // PAGE_SIZE))


def parts(address: int, size: int, pages: Collection[int]) -> Iterator[tuple[int, int]]:
    """Start and end of the pieces of ``size`` bytes at ``address`` that lie in some pages."""
    for number in pages_of(address, size):
        if number in pages:
            yield max(number * PAGE_SIZE, address), min((number + 1) * PAGE_SIZE, address + size)


def ranges(pages: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Numbers of pages, sorted, as ranges of addresses of neighbours; of ``most`` pages at most."""
    first = last = -1
    for count, number in enumerate(pages):
        if number != last + 1 or first < 0 or count == most:
            if first >= 0:
                yield first * PAGE_SIZE, (last + 1) * PAGE_SIZE
            if count == most:
                return
            first = number
        last = number
    if first >= 0:
        yield first * PAGE_SIZE, (last + 1) * PAGE_SIZE
