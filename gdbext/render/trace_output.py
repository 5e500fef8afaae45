"""Where a trace goes: a file in the format that its name asks for, the terminal, or the events of a document."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from gdbext.errors import TargetError
from gdbext.formats.whole_file import WholeFile
from gdbext.live.host import write
from gdbext.model.ending import Ending, EndingKind

if TYPE_CHECKING:
    from gdbext.live.trace.sink import Sink
    from gdbext.render.text.trace_text import Batch

_PAGE, _CHROME, _LINES = ".html", ".json", ".jsonl"


def shows_time(path: str | None) -> bool:
    """That format has times, which are worth probes of their own."""
    return path is not None and path.endswith((_PAGE, _CHROME))


class TraceOutput:
    """A context manager. Pages appear when they are whole; everything else as it happens, so that the last line before
    a hang is there."""

    def __init__(self, path: str | None, verbose: bool, quiet: bool, standard_output: int) -> None:
        """``quiet``: nothing but the document goes to the terminal. Raises TargetError."""
        self._path = path
        self._verbose = verbose
        self._quiet = quiet
        self._events: list[Mapping[str, object]] | None = [] if quiet and not path else None
        self._batch: Batch | None = None
        self._standard_output = standard_output
        self._page: WholeFile | None = None
        self._descriptor = standard_output if path is None else self._open(path)

    def _open(self, path: str) -> int:
        try:
            if path.endswith(_PAGE):
                self._page = WholeFile(path)
                return self._page.descriptor
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _cannot_write(path, error) from error

    def sink(self, now: Callable[[], float], pid: int) -> Sink:
        """What the trace goes to."""
        from gdbext.render.text.trace_text import Writer

        return self._sink(Writer(self._descriptor), now, pid)

    def batches(self, now: Callable[[], float], pid: int) -> Sink:
        """The same, for dispatches that come many at a time: written when flush() is called."""
        from gdbext.render.text.trace_text import Batch

        self._batch = Batch(self._descriptor)
        return self._sink(self._batch, now, pid)

    def flush(self) -> None:
        """Write what batches() has kept. Raises OSError."""
        if self._batch is not None:
            self._batch.flush()

    def _sink(self, write: Callable[[bytes], None], now: Callable[[], float], pid: int) -> Sink:
        from gdbext.render.json.trace_events import JsonTrace, json_lines
        from gdbext.render.text.trace_text import TextTrace

        path = self._path or ""
        if self._events is not None:
            return JsonTrace(self._events.append)
        if path.endswith(_PAGE):
            from gdbext.render.html.timeline_page import TimelinePage

            return TimelinePage(write, pid, now)
        if path.endswith(_CHROME):
            from gdbext.render.json.chrome_trace import ChromeTrace

            return ChromeTrace(write, pid, now)
        if path.endswith(_LINES):
            return JsonTrace(json_lines(write))
        return TextTrace(write, self._verbose)

    def notify(self, text: str) -> None:
        """Tell something at once, where people look; with --json it is in the document's notes."""
        if not self._quiet:
            write(self._standard_output, f"note: {text}\n")

    @property
    def events(self) -> tuple[Mapping[str, object], ...] | None:
        """Those for the document, None where they went elsewhere."""
        return None if self._events is None else tuple(self._events)

    def finish(self, ending: Ending) -> None:
        """The trace is over. Raises TargetError."""
        if self._page is None or ending.kind is EndingKind.FAILED:
            return
        try:
            self._page.keep()
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def __enter__(self) -> TraceOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._page is not None:
            self._page.discard()
        elif self._path is not None:
            os.close(self._descriptor)


def _cannot_write(path: str | None, error: OSError) -> TargetError:
    return TargetError(f"cannot write to {path}: {error.strerror}", help="name another --output")
