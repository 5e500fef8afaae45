"""Writes a trace to a file in the format that its name asks for, to the terminal, or to the events of a document.

On a terminal a trace is lines as PyTorch prints them (``_print_dispatch_trace``, Dispatcher.cpp): as many spaces as
dispatches are open, the new one included, then ``[call] op=[…], key=[…]``; the time since the trace began comes after
that. Lines of --verbose are one space further in and have words of their own, so that the others stay comparable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.engine.formats.whole_file import WholeFile
from gdbext.engine.terminal import shown
from gdbext.errors import TargetError
from gdbext.live.dispatch_description import LookupResult, TracedDispatch
from gdbext.render import escape
from gdbext.render.page import NO_ORIGIN, Origin
from gdbext.tools.probes.flame_files import SPEEDSCOPE, is_flame_file
from gdbext.tools.trace.chrome_trace import ChromeTrace, JsonTrace, TimelinePage, json_lines
from gdbext.tools.trace.trace_bars import FlameTrace, TraceSink


class TextTrace(TraceSink):
    """Lines for people. ``write`` gets whole lines, each at once, so that the last one before a hang is there."""

    def __init__(self, write: Callable[[bytes], None], verbose: bool = False) -> None:
        self._write = write
        self._verbose = verbose
        self._texts: dict[int, tuple[LookupResult, bytes]] = {}
        """By the id of a LookupResult, which is kept along, so that its id stays its own."""
        self._tid = 0

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        self._line(tid, depth, _encoded(f"[entry] op=[{escape(name)}], event=[{event}]\n"))

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """PyTorch's line, ``[call] op=[aten::mm], key=[AutogradMeta]``; with --verbose the lookup's steps, as the table
        in memory answers them."""
        lookup, depth = dispatch.lookup, dispatch.depth
        if id(lookup) not in self._texts:
            text = f"[{lookup.event.value}] op=[{escape(lookup.qualified)}], key=[{lookup.key}]"
            self._texts[id(lookup)] = (lookup, _encoded(text))
        self._line(dispatch.tid, depth, self._texts[id(lookup)][1] + b", at=[%.6f s]\n" % (dispatch.started / 1e6))
        if not self._verbose:
            return
        kernel, keyset = lookup.kernel, lookup.keyset
        kinds = f"valid=[{kernel.valid:d}], boxed=[{kernel.boxed:d}], unboxed=[{kernel.unboxed:d}]"
        where = f", path=[{kernel.path}]" if kernel.path else ""
        origin = f", {kernel.registered_at}" if kernel.registered_at else ""
        for text in (
            f"[lookup] keyset=[DispatchKeySet({', '.join(keyset.keys)})], bits=[{keyset.bits:#x}]\n",
            f"[index] key=[{lookup.key}], index=[{lookup.table_index}], {kinds}\n",
            f"[found] kernel=[{escape(lookup.kernel_text)}]{where}{escape(origin)}\n",
        ):
            self._line(dispatch.tid, depth + 1, _encoded(text))

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        if self._verbose:
            self._line(dispatch.tid, dispatch.depth + 1, _encoded(f"[{word}] {escape(text)}\n"))

    def _line(self, tid: int, depth: int, text: bytes) -> None:
        if tid != self._tid:
            if self._tid:
                self._write(b"thread %d\n" % tid)
            self._tid = tid
        self._write(b" " * depth + text)


def _encoded(line: str) -> bytes:
    return shown(line).encode()


def _write_all(descriptor: int, data: bytes) -> None:
    """Write to an unbuffered file, completely or raise OSError."""
    written = os.write(descriptor, data)
    while written < len(data):
        data = data[written:]
        written = os.write(descriptor, data)


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
        """``quiet``: nothing but the document is written to the terminal, which is where ``show`` writes. ``names``
        gives the name of a thread. Raises TargetError."""
        self._names = names
        self._origin = origin
        self._path = path
        self._verbose = verbose
        self._quiet = quiet
        self._events: list[Mapping[str, object]] | None = [] if quiet and not path else None
        self._batch: list[bytes] = []
        self._show = show
        self._is_page = (path or "").endswith(_PAGE)
        self._file: WholeFile | None = None
        self._write: Callable[[bytes], None] = lambda data: show(data.decode())
        if path is not None:
            try:
                self._file = WholeFile(path)
                if not self._is_page:
                    self._file.show()
            except OSError as error:
                raise _cannot_write(path, error) from error
            self._write = partial(_write_all, self._file.fd)

    def sink(self, now: Callable[[], float], pid: int) -> TraceSink:
        """The receiver that the trace is written by."""
        return self._sink(self._write, now, pid)

    def batches(self, now: Callable[[], float], pid: int) -> TraceSink:
        """The same, for dispatches that come many at a time: written when flush() is called."""
        return self._sink(self._batch.append, now, pid)

    def flush(self) -> None:
        """Write what batches() has kept. Raises OSError."""
        data = b"".join(self._batch)
        self._batch.clear()
        if data:
            self._write(data)

    def _sink(self, write: Callable[[bytes], None], now: Callable[[], float], pid: int) -> TraceSink:
        path = self._path or ""
        if self._events is not None:
            return JsonTrace(self._events.append)
        if self._is_page:
            return TimelinePage(write, pid, now, self._origin)
        if is_flame_file(path):
            return FlameTrace(write, pid, now, self._names, path.endswith(SPEEDSCOPE))
        if path.endswith(_CHROME):
            return ChromeTrace(write, pid, now, self._names)
        return JsonTrace(json_lines(write)) if path.endswith(_LINES) else TextTrace(write, self._verbose)

    def notify(self, text: str) -> None:
        """Show a note at once; with --json it is in the document's notes."""
        if not self._quiet:
            self._show(f"note: {text}\n")

    @property
    def events(self) -> tuple[Mapping[str, object], ...] | None:
        """Those for the document, None where they are written elsewhere."""
        return None if self._events is None else tuple(self._events)

    def finish(self, ending: Ending) -> None:
        """Keep the page: the trace is over. Raises TargetError."""
        if self._file and self._is_page and ending.kind is not EndingKind.FAILED:
            try:
                self._file.keep()
            except OSError as error:
                raise _cannot_write(self._path, error) from error

    def __enter__(self) -> TraceOutput:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.discard()


def _cannot_write(path: str | None, error: OSError) -> TargetError:
    return TargetError(f"cannot write to {path}: {error.strerror}", help="name another --output")
