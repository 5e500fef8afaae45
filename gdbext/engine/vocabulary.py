"""What all reports have in common: annotations for JSON, certainty of values, sections, errors, and amounts in words.

Amounts have one form in all texts: numbers of four digits and more have separators, sizes are in units of 1024,
durations in the unit that leaves one to three digits. JSON has plain numbers in bytes, milliseconds or seconds.
"""

from __future__ import annotations

from enum import Enum
from functools import total_ordering
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Annotated, Any, ClassVar

    from gdbext.errors import GdbextError

    AnyType = TypeVar("AnyType")
    Hexadecimal = Annotated[int, "an address or a set of bits, a text in JSON: 0x7f00"]
    Count = Annotated[int, "from 0 on"]
    Amount = Annotated[float, "from 0 on"]
    RankSet = Annotated[Collection[int], "a text in JSON: 0-4,6-7"]
    Sparse = Annotated[AnyType, "left out of JSON where it has its default"]
    Internal = Annotated[AnyType, "not in JSON"]
    Explained = Annotated[AnyType, "in JSON with --why only"]
    Inline = Annotated[AnyType, "in JSON its members are among those of this record"]

Type = TypeVar("Type")


class DebuggerEntry(NamedTuple):
    """How a user loads gdbext into a debugger."""

    file: str
    """What to load, beside the packages."""
    command: str


DEBUGGERS = {
    "gdb": DebuggerEntry("init.py", "(gdb) source FILE"),
    "lldb": DebuggerEntry("lldb_init.py", "(lldb) command script import FILE"),
}
"""Debuggers by name, as in --debugger and --init-path, the folders of hosts/, and the makers of recordings."""
NO_DEBUGGER = "none"
"""The name in the place of a debugger's for gdbext alone."""


class JsonMember(Generic[Type]):
    """A property of a record that is written as a member of its JSON object, behind the member ``after``."""

    def __init__(self, function: Callable[[Any], Type], after: str) -> None:
        self.function = function
        self.after = after
        self.__doc__ = function.__doc__

    def __get__(self, instance: object, owner: type) -> Type:
        return self.function(instance)


def json_member(after: str) -> Callable[[Callable[[Any], Type]], JsonMember[Type]]:
    """A decorator that makes a method a property and a member of the JSON object, behind the member ``after``."""
    return lambda function: JsonMember(function, after)


@total_ordering
class Certainty(Enum):
    """How certain a value is; members compare: ``UNKNOWN < INFERRED < VERIFIED < EXACT``."""

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


_STRENGTH = {member: strength for strength, member in enumerate(Certainty)}


class Section:
    """What one command adds to its report beside threads, findings and errors: plain values and records, in fields that
    never change."""

    name: ClassVar[str]
    """The name of the section: its member of the JSON document ("operators", "lookup", …)."""
    only_member: ClassVar[str] = ""
    """The field that stands for the whole section in JSON, as a list of objects; "" where its fields are members."""

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences on what to try next."""
        return ()


class ErrorReport(NamedTuple):
    """Something that could not be read, as a report lists it; ``where`` is a thread, module or field."""

    what: str
    where: str = ""
    help: str = ""
    why: str = ""

    @classmethod
    def of(cls, error: GdbextError, where: str = "") -> ErrorReport:
        return cls(error.what, where, error.help, error.why)


class ErrorLog:
    """Collects the errors of one inspection, without duplicates."""

    def __init__(self) -> None:
        self._noted: dict[str, ErrorReport] = {}

    def note(self, error: GdbextError, where: str) -> None:
        """Add an error in reading ``where``, a thread, module or field."""
        self._noted.setdefault(f"{where}: {error.what}", ErrorReport.of(error, where))

    def reports(self) -> tuple[ErrorReport, ...]:
        return tuple(self._noted.values())


_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def plural(noun: str) -> str:
    """The noun's plural: ``threads``, ``dispatches``, ``entries``, ``children``."""
    if noun.endswith("child"):
        return f"{noun}ren"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def counted(number: int, noun: str) -> str:
    """The number with the noun (given in the singular): ``1 thread``, ``2 threads``, ``1,234 dispatches``."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def singular_or_plural(number: float, singular: str, otherwise: str) -> str:
    """``singular`` for the number 1, else ``otherwise``: ``is`` or ``are``."""
    return singular if number == 1 else otherwise


def or_unknown(value: object, unknown: str = "?") -> str:
    """The value as text, ``unknown`` for None."""
    return unknown if value is None else str(value)


def byte_size(number: int) -> str:
    """A number of bytes: ``1 byte``, ``40 bytes``, ``1.5 KiB``, ``3.0 GiB``."""
    if abs(number) < 1024:
        return counted(number, "byte")
    amount = float(number)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        amount /= 1024
        if abs(amount) < 1024 or unit == "PiB":
            break
    return f"{amount:,.1f} {unit}"


def duration(seconds: float) -> str:
    """A duration: ``3.5 ms``, ``0.25 s``, ``34 s``, ``12 min``, ``3.5 h``, ``4 d``."""
    if seconds >= 2 * _DAY:
        return f"{seconds / _DAY:,.0f} d"
    if seconds >= 2 * _HOUR:
        return f"{seconds / _HOUR:.1f} h".replace(".0 ", " ")
    if seconds >= 2 * _MINUTE:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    if seconds >= 0.1 or not seconds:
        return f"{seconds:.2g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
