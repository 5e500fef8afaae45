"""ErrorLog: what could not be read so far, each thing once."""

from __future__ import annotations

from gdbext.errors import GdbextError
from gdbext.model.error_report import ErrorReport


class ErrorLog:
    """Collects errors while one target is read."""

    def __init__(self) -> None:
        self._noted: dict[str, ErrorReport] = {}

    def note(self, error: GdbextError, where: str) -> None:
        """Remember that something could not be read; ``where`` is a thread, module or field."""
        self._noted.setdefault(f"{where}: {error.what}", ErrorReport.of(error, where))

    def reports(self) -> tuple[ErrorReport, ...]:
        """All of them, in the order in which they came up."""
        return tuple(self._noted.values())
