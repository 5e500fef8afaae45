"""Recognizers (``gdbext.waits``), pools (``gdbext.pools``) and named waits (``gdbext.named_waits``) of other packages;
a fault costs only what they add."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.waits.named_table import NamedWait
from gdbext.diagnosis.waits.pool_table import Pool
from gdbext.engine.entry_points import EntryPoint, entry_points, guarded
from gdbext.errors import AddOnError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeVar

    from gdbext.engine.vocabulary import ErrorLog

    Row = TypeVar("Row")

POOLS_GROUP = "gdbext.pools"
"""NAME = "module:attribute": a Pool, or a tuple of them."""
NAMED_GROUP = "gdbext.named_waits"
"""NAME = "module:attribute": a NamedWait, or a tuple of them."""
WAITS_GROUP = "gdbext.waits"
"""NAME = "module:function": ThreadSnapshot → Wait, or None."""


class AddOns:
    """The pools and recognizers of other packages, loaded when they are first needed."""

    def __init__(self, errors: ErrorLog) -> None:
        self._errors = errors

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """All pools of other packages; what is no Pool is recorded as an error."""
        return tuple(self._rows(POOLS_GROUP, Pool))

    @cached_property
    def named_waits(self) -> tuple[NamedWait, ...]:
        """All named waits of other packages; what is no NamedWait is recorded as an error."""
        return tuple(self._rows(NAMED_GROUP, NamedWait))

    def _rows(self, group: str, kind: type[Row]) -> Iterator[Row]:
        """The rows of a class that the entry points of a group name, one each or several."""
        for point in entry_points(group):
            loaded = self._loaded(point)
            rows = loaded if isinstance(loaded, (tuple, list)) and not isinstance(loaded, kind) else (loaded,)
            for row in rows if loaded is not None else ():
                if isinstance(row, kind):
                    yield row
                else:
                    entry = f"{point.group} {point.name!r} of {point.package}"
                    self.note(AddOnError(f"{entry} is no gdbext.{kind.__name__}: {row!r:.80}"))

    @cached_property
    def recognizers(self) -> tuple[AddedRecognizer, ...]:
        loaded = ((point, self._loaded(point)) for point in entry_points(WAITS_GROUP))
        return tuple(AddedRecognizer(point, function, self) for point, function in loaded if function is not None)

    def _loaded(self, point: EntryPoint) -> Any:
        """The object of an entry point; None after a failure, which is recorded."""
        try:
            return point.load()
        except AddOnError as error:
            self.note(error)
            return None

    def note(self, error: AddOnError) -> None:
        self._errors.note(error, "what other packages add")


class AddedRecognizer:
    """A recognizer of another package. After a failure, or an impossible answer, it is not called again."""

    def __init__(self, point: EntryPoint, function: Any, add_ons: AddOns) -> None:
        self._point = point
        self._function = function
        self._add_ons = add_ons
        self._failed = False

    def __call__(self, thread: Any) -> Wait | None:
        """The wait of a thread (ThreadSnapshot), None if the recognizer does not know it."""

        def checked_wait() -> Wait | None:
            """The recognizer's answer. Raises TypeError, ValueError if it is no Wait, or names an unknown owner."""
            wait = self._function(thread)
            if wait is None or isinstance(wait, Wait):
                strange = [tid for tid in wait.owner_tids if tid not in thread.process.tids] if wait else []
                if not strange:
                    return wait
                raise ValueError(f"thread {strange[0]}, which it names as the owner, is no thread of this process")
            raise TypeError(f"{type(wait).__name__} is no gdbext.Wait")

        if self._failed:
            return None
        try:
            return guarded(self._point, checked_wait)
        except AddOnError as error:
            self._failed = True
            self._add_ons.note(error)
            return None
