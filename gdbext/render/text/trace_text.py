"""A trace as lines in PyTorch's own words (``_print_dispatch_trace``, Dispatcher.cpp).

PyTorch prints as many spaces as dispatches are open, the new one included, then ``[call] op=[…], key=[…]``. Lines of
--verbose stand one space further in and have words of their own, so that the others stay comparable.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gdbext.model.dispatch.traced_dispatch import LookupResult, TracedDispatch
from gdbext.render.text.style import escape


class TextTrace:
    """Lines for people. ``write`` gets whole lines, each at once, so that the last one before a hang is there."""

    def __init__(self, write: Callable[[bytes], None], verbose: bool = False) -> None:
        self._write = write
        self._verbose = verbose
        self._texts: dict[int, tuple[LookupResult, bytes]] = {}
        self._tid = 0

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """``[entry]``: the operator's function, before the keyset is known."""
        self._line(tid, depth, f"[entry] op=[{escape(name)}], event=[{event}]\n".encode())

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """PyTorch's line; with --verbose the lookup and what it found."""
        found = dispatch.found
        known = self._texts.get(id(found))
        if known is None:
            # The LookupResult is kept along, so that its id stays its own.
            known = self._texts[id(found)] = (found, dispatch_text(found).encode())
        self._line(dispatch.tid, dispatch.depth, known[1])
        if self._verbose:
            for text in lookup_texts(found):
                self._line(dispatch.tid, dispatch.depth + 1, text.encode())

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """``[word] text``."""
        if self._verbose:
            self._line(dispatch.tid, dispatch.depth + 1, f"[{word}] {escape(text)}\n".encode())

    def ended(self, dispatch: TracedDispatch) -> None:
        """Text shows returns as steps only."""

    def close(self) -> None:
        """Nothing is kept back."""

    def _line(self, tid: int, depth: int, text: bytes) -> None:
        if tid != self._tid:
            if self._tid:
                self._write(b"thread %d\n" % tid)
            self._tid = tid
        self._write(b" " * depth + text)


def dispatch_text(found: LookupResult) -> str:
    """``[call] op=[aten::mm], key=[AutogradMeta]`` and a line feed."""
    return f"[{found.event}] op=[{escape(found.qualified)}], key=[{found.key}]\n"


def lookup_texts(found: LookupResult) -> list[str]:
    """The steps that a lookup consists of, as the table in memory answers them."""
    kinds = f"valid=[{found.valid:d}], boxed=[{found.boxed:d}], unboxed=[{found.unboxed:d}]"
    where = f", path=[{found.path}]" if found.path else ""
    origin = f", {found.registered_at}" if found.registered_at else ""
    return [
        f"[lookup] keyset=[DispatchKeySet({', '.join(found.keys)})], bits=[{found.bits:#x}]\n",
        f"[index] key=[{found.key}], index=[{found.table_index}], {kinds}\n",
        f"[found] kernel=[{escape(found.kernel or found.kind)}]{where}{escape(origin)}\n",
    ]


class Batch:
    """Keeps what is written until flush()."""

    def __init__(self, descriptor: int) -> None:
        self._write = Writer(descriptor)
        self._pieces: list[bytes] = []

    def __call__(self, data: bytes) -> None:
        self._pieces.append(data)

    def flush(self) -> None:
        """Raises OSError."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        if data:
            self._write(data)


class Writer:
    """An unbuffered file. A write is complete or raises OSError."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __call__(self, data: bytes) -> None:
        written = os.write(self.descriptor, data)
        while written < len(data):
            data = data[written:]
            written = os.write(self.descriptor, data)
