"""Attempt: something that is made once, or fails once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from gdbext.errors import GdbextError

Made = TypeVar("Made")


class Attempt(Generic[Made]):
    """Calls ``make`` when it is first asked for the result, and keeps that, or the error, for every later question."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._made: list[Made] = []
        self._error: GdbextError | None = None

    @property
    def error(self) -> GdbextError | None:
        """Why there is no result, None where there is one."""
        if not self._made and self._error is None:
            try:
                self._made.append(self._make())
            except GdbextError as error:
                self._error = error
        return self._error

    def get(self) -> Made:
        """The result. Raises the error that ``make`` raised."""
        if self.error is not None:
            raise self.error
        return self._made[0]
