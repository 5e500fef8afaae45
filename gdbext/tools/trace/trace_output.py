"""Writes a trace to a file in the format that its name asks for, to the terminal, or to the events of a document.

On a terminal a trace is lines in PyTorch's own words (``_print_dispatch_trace``, Dispatcher.cpp).

PyTorch prints as many spaces as dispatches are open, the new one included, then ``[call] op=[…], key=[…]``; the time
since the trace began comes after that. Lines of --verbose stand one space further in and have words of their own, so
that the others stay comparable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.engine.formats.whole_file import WholeFile
from gdbext.engine.terminal import shown
from gdbext.errors import TargetError
from gdbext.live.dispatch_description import LookupResult, TracedDispatch
from gdbext.render import escape
from gdbext.render.page import NO_ORIGIN, Origin
from gdbext.tools.probes.flame_files import SPEEDSCOPE, is_flame_file
from gdbext.tools.trace.chrome_trace import ChromeTrace, JsonTrace, TimelinePage, json_lines
from gdbext.tools.trace.trace_bars import FlameTrace


class Sink(Protocol):
    """The receiver of a trace. Everything may raise OSError."""

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """The operator's function was entered; there is no keyset yet."""

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """Write the dispatch of a lookup."""

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """A step inside a dispatch: "enter", "boxed", "meta", "impl", "return" …"""

    def ended(self, dispatch: TracedDispatch) -> None:
        """The dispatch is over; ``dispatch.returned`` says whether that was seen."""

    def close(self) -> None:
        """The trace is over. Dispatches that did not end have ``ended`` None."""


class TextTrace:
    """Lines for people. ``write`` gets whole lines, each at once, so that the last one before a hang is there."""

    def __init__(self, write: Callable[[bytes], None], verbose: bool = False) -> None:
        self._write = write
        self._verbose = verbose
        self._texts: dict[int, tuple[LookupResult, bytes]] = {}
        self._tid = 0

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """``[entry]``: the operator's function, before the keyset is known."""
        self._line(tid, depth, _encoded(f"[entry] op=[{escape(name)}], event=[{event}]\n"))

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """PyTorch's line; with --verbose the lookup and what it found."""
        found = dispatch.found
        known = self._texts.get(id(found))
        if not known:
            # The LookupResult is kept along, so that its id stays its own.
            known = self._texts[id(found)] = (found, _encoded(dispatch_text(found)))
        self._line(dispatch.tid, dispatch.depth, known[1] + b", at=[%.6f s]\n" % (dispatch.started / 1e6))
        if self._verbose:
            for text in lookup_texts(found):
                self._line(dispatch.tid, dispatch.depth + 1, _encoded(text))

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """Write a step: ``[word] text``."""
        if self._verbose:
            self._line(dispatch.tid, dispatch.depth + 1, _encoded(f"[{word}] {escape(text)}\n"))

    def ended(self, dispatch: TracedDispatch) -> None:
        """Text shows returns as steps only."""

    def close(self) -> None:
        """Close; nothing was kept back."""

    def _line(self, tid: int, depth: int, text: bytes) -> None:
        if tid != self._tid:
            if self._tid:
                self._write(b"thread %d\n" % tid)
            self._tid = tid
        self._write(b" " * depth + text)


def _encoded(line: str) -> bytes:
    return shown(line).encode()


def dispatch_text(found: LookupResult) -> str:
    """The line as PyTorch has it: ``[call] op=[aten::mm], key=[AutogradMeta]``."""
    return f"[{found.event.value}] op=[{escape(found.qualified)}], key=[{found.key}]"


def lookup_texts(found: LookupResult) -> list[str]:
    """The steps that a lookup consists of, as the table in memory answers them."""
    kernel, keyset = found.kernel, found.keyset
    kinds = f"valid=[{kernel.valid:d}], boxed=[{kernel.boxed:d}], unboxed=[{kernel.unboxed:d}]"
    where = f", path=[{kernel.path}]" if kernel.path else ""
    origin = f", {kernel.registered_at}" if kernel.registered_at else ""
    return [
        f"[lookup] keyset=[DispatchKeySet({', '.join(keyset.keys)})], bits=[{keyset.bits:#x}]\n",
        f"[index] key=[{found.key}], index=[{found.table_index}], {kinds}\n",
        f"[found] kernel=[{escape(found.kernel_text)}]{where}{escape(origin)}\n",
    ]


class Batch:
    """Keeps what is written until flush()."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._pieces: list[bytes] = []

    def __call__(self, data: bytes) -> None:
        self._pieces.append(data)

    def flush(self) -> None:
        """Write what was kept back. Raises OSError."""
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


_PAGE, _CHROME, _LINES = ".html", ".json", ".jsonl"


def shows_time(path: str | None) -> bool:
    """True if that format has times, which are worth probes of their own."""
    return (path or "").endswith((_PAGE, _CHROME)) or is_flame_file(path)


class TraceOutput:
    """A context manager. Pages appear when they are whole; everything else as it happens, so that the last line before
    a hang is there."""

    def __init__(
        self,
        path: str | None,
        verbose: bool,
        quiet: bool,
        show: Callable[[str], None],
        names: Callable[[int], str] = str,
        origin: Origin = NO_ORIGIN,
    ) -> None:
        """``quiet``: nothing but the document goes to the terminal, which is where ``show`` writes. ``names`` gives the
        name of a thread. Raises TargetError."""
        self._names = names
        self._origin = origin
        self._path = path
        self._verbose = verbose
        self._quiet = quiet
        self._events: list[Mapping[str, object]] | None = [] if quiet and not path else None
        self._batch: Batch | None = None
        self._show = show
        self._file = None if path is None else _opened(path)
        self._write: Callable[[bytes], None] = Writer(self._file.fd) if self._file else self._show_bytes

    def sink(self, now: Callable[[], float], pid: int) -> Sink:
        """The receiver that the trace goes to."""

        return self._sink(self._write, now, pid)

    def batches(self, now: Callable[[], float], pid: int) -> Sink:
        """The same, for dispatches that come many at a time: written when flush() is called."""

        self._batch = Batch(self._write)
        return self._sink(self._batch, now, pid)

    def flush(self) -> None:
        """Write what batches() has kept. Raises OSError."""
        if self._batch:
            self._batch.flush()

    def _sink(self, write: Callable[[bytes], None], now: Callable[[], float], pid: int) -> Sink:
        path = self._path or ""
        if self._events is not None:
            return JsonTrace(self._events.append)
        if path.endswith(_PAGE):
            return TimelinePage(write, pid, now, self._origin)
        if is_flame_file(path):
            return FlameTrace(write, pid, now, self._names, path.endswith(SPEEDSCOPE))
        if path.endswith(_CHROME):
            return ChromeTrace(write, pid, now, self._names)
        if path.endswith(_LINES):
            return JsonTrace(json_lines(write))
        return TextTrace(write, self._verbose)

    def _show_bytes(self, data: bytes) -> None:
        self._show(data.decode())

    def notify(self, text: str) -> None:
        """Tell something at once, where people look; with --json it is in the document's notes."""
        if not self._quiet:
            self._show(f"note: {text}\n")

    @property
    def events(self) -> tuple[Mapping[str, object], ...] | None:
        """Those for the document, None where they went elsewhere."""
        return None if self._events is None else tuple(self._events)

    def finish(self, ending: Ending) -> None:
        """The trace is over. Raises TargetError."""
        if not self._file or not self._is_page() or ending.kind is EndingKind.FAILED:
            return
        try:
            self._file.keep()
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def __enter__(self) -> TraceOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file:
            self._file.discard()

    def _is_page(self) -> bool:
        return (self._path or "").endswith(_PAGE)


def _opened(path: str) -> WholeFile:
    """Open the file of the trace. Raises TargetError."""
    try:
        file = WholeFile(path)
        if not path.endswith(_PAGE):
            file.show()
        return file
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: str | None, error: OSError) -> TargetError:
    return TargetError(f"cannot write to {path}: {error.strerror}", help="name another --output")
