"""ErrorReport: one thing that could not be read, as a report lists it."""

from __future__ import annotations

from gdbext.errors import GdbextError
from gdbext.model.record import Record


class ErrorReport(Record):
    """``where`` is a thread, module or field."""

    what: str
    where: str = ""
    help: str = ""
    why: str = ""

    @classmethod
    def of(cls, error: GdbextError, where: str = "") -> ErrorReport:
        """The error, as a line of the report."""
        return cls(error.what, where, error.help, error.why)
