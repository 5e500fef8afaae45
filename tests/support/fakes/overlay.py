"""A real target with some of its memory changed or missing, to see what damage does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdbext.engine.targets.base_target import Target
from gdbext.errors import MemoryFault


def _of_inner(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(self.inner, name)(*arguments)


class OverlayTarget(Target):
    """Reads through to ``inner``: ``patches`` (address to bytes) lie over it, ``holes`` are unreadable."""

    def __init__(
        self, inner: Target, patches: Mapping[int, bytes] | None = None, holes: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.inner = inner
        self.kind = inner.kind
        self.debugger = inner.debugger
        self.pid = inner.pid
        self.architecture = inner.architecture
        self._patches = dict(patches or {})
        self._holes = tuple(holes)

    def read(self, address: int, size: int) -> bytes:
        for start, length in self._holes:
            if address < start + length and start < address + size:
                raise MemoryFault(max(address, start), size, "a hole made by the test")
        raw = bytearray(self.inner.read(address, size))
        for start, contents in self._patches.items():
            low, high = max(start, address), min(start + len(contents), address + size)
            if low < high:
                raw[low - address : high - address] = contents[low - start : high - start]
        return bytes(raw)

    threads, selected_thread, maps, auxv, local_path, environ, close = map(
        _of_inner, ("threads", "selected_thread", "maps", "auxv", "local_path", "environ", "close")
    )
