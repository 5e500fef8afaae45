"""ErrorLog: what could not be read so far, each thing once.

Absent: what stands where something could not be read.

Hexadecimal: a number that reports write as 0x7f00.

Certainty: how sure the report is of a statement, in one vocabulary for all of them.

Section: what one command adds to its report, beside threads, findings and errors.

ErrorReport: one thing that could not be read, as a report lists it.

DEBUGGERS: the debuggers that gdbext works in.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

from gdbext.engine.record import Record
from gdbext.errors import GdbextError


class DebuggerEntry(Record):
    """``file``: what a user loads into the debugger, beside the packages. ``command``: how."""

    file: str
    command: str


DEBUGGERS = {
    "gdb": DebuggerEntry("init.py", "(gdb) source FILE"),
    "lldb": DebuggerEntry("lldb_init.py", "(lldb) command script import FILE"),
}
"""Debuggers by name: the values of --debugger and --init-path, the folders of hosts/, and who may have made a
recording."""
NO_DEBUGGER = "none"
"""The name that stands for this very process, without a debugger."""


class Absent(Record):
    """A value that could not be read, and why. False, so that ``value or default`` works on it."""

    reason: str

    def __bool__(self) -> bool:
        return False


class Hexadecimal(int):
    """An address or a set of bits; the type alone tells ``render.json`` from a number that counts something."""


class Certainty(Enum):
    """The way in which a value is known; members compare by strength, ``UNKNOWN < INFERRED < VERIFIED < EXACT``."""

    UNKNOWN = "unknown"
    """Nothing speaks for a value, or more than one value is possible."""
    INFERRED = "inferred"
    """Concluded from something else: a kernel, frames of other threads."""
    VERIFIED = "verified"
    """Found in a frame, and proven by an independent second reading."""
    EXACT = "exact"
    """Read at the very place where the process keeps or passes the value."""

    @property
    def is_proven(self) -> bool:
        """The value may be stated without a reservation."""
        return self >= Certainty.VERIFIED

    def __lt__(self, other: Certainty) -> bool:
        return _STRENGTH[self] < _STRENGTH[other]

    def __le__(self, other: Certainty) -> bool:
        return _STRENGTH[self] <= _STRENGTH[other]

    def __gt__(self, other: Certainty) -> bool:
        return _STRENGTH[self] > _STRENGTH[other]

    def __ge__(self, other: Certainty) -> bool:
        return _STRENGTH[self] >= _STRENGTH[other]


_STRENGTH = {member: strength for strength, member in enumerate(Certainty)}


class Section:
    """Base of all sections: plain values and the model's own types, in fields that nobody changes."""

    name: ClassVar[str]
    """The name of the section: its member of the JSON document ("operators", "lookup", …)."""

    def document(self, why: bool) -> Any:  # noqa: ARG002
        """The section as plain JSON values, with the evidence if ``why``; None where its fields are its members."""
        return None


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
