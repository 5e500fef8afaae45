"""Recognisers (entry point ``gdbext.waits``) and pools (``gdbext.pools``) that other packages add.

A fault of theirs is recorded in the error log and costs what they would have added, never the report.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.waits.pool_table import Pool
from gdbext.engine.entry_points import EntryPoint, entry_points, guarded
from gdbext.errors import AddOnError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

    from gdbext.engine.vocabulary import ErrorLog

POOLS_GROUP = "gdbext.pools"
"""NAME = "module:attribute": a Pool, or a tuple of them."""
WAITS_GROUP = "gdbext.waits"
"""NAME = "module:function": ThreadSnapshot → Wait, or None."""


class AddOns:
    """Loads both when they are first asked for."""

    def __init__(self, errors: ErrorLog) -> None:
        self._errors = errors

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """The rows of pools that other packages add."""
        return tuple(pool for point in entry_points(POOLS_GROUP) for pool in self._rows(point))

    def _rows(self, point: EntryPoint) -> Iterator[Pool]:
        found = self._loaded(point)
        rows = found if isinstance(found, (tuple, list)) and not isinstance(found, Pool) else (found,)
        for row in rows if found is not None else ():
            if isinstance(row, Pool):
                yield row
            else:
                self.note(AddOnError(f"{point.group} {point.name!r} of {point.package} is no gdbext.Pool: {row!r:.80}"))

    @cached_property
    def recognisers(self) -> tuple[AddedRecogniser, ...]:
        """The recognisers that other packages add."""
        loaded = ((point, self._loaded(point)) for point in entry_points(WAITS_GROUP))
        return tuple(AddedRecogniser(point, found, self) for point, found in loaded if found is not None)

    def _loaded(self, point: EntryPoint) -> Any:
        try:
            return point.load()
        except AddOnError as error:
            self.note(error)
            return None

    def note(self, error: AddOnError) -> None:
        """Record it for the report."""
        self._errors.note(error, "what other packages add")


class AddedRecogniser:
    """A recogniser of another package. One that fails, or that says what cannot be, is not asked again."""

    def __init__(self, point: EntryPoint, function: Any, add_ons: AddOns) -> None:
        self._point = point
        self._function = function
        self._add_ons = add_ons
        self._failed = False

    def __call__(self, thread: Any) -> Wait | None:
        """The wait of a thread (ThreadSnapshot), None where the recogniser does not know it."""
        if self._failed:
            return None
        try:
            return guarded(self._point, lambda: _checked(self._function(thread), thread.process.tids))
        except AddOnError as error:
            self._failed = True
            self._add_ons.note(error)
            return None


def _checked(found: object, tids: Collection[int]) -> Wait | None:
    """The answer. Raises TypeError, ValueError for what is no wait, or names threads that there are not."""
    if found is None:
        return None
    if not isinstance(found, Wait):
        raise TypeError(f"{type(found).__name__} is no gdbext.Wait")
    strange = [tid for tid in found.owner_tids if tid not in tids]
    if strange:
        raise ValueError(f"thread {strange[0]}, which it names as the owner, is no thread of this process")
    return found
