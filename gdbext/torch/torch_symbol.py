"""One name that is assumed of torch's libraries: how it is looked for, and what is lost without it."""

from __future__ import annotations

from enum import Enum

from gdbext.formats.symbols.symbol_table import Symbol
from gdbext.model.record import Record
from gdbext.process.modules import Module
from gdbext.process.symbols import Symbolizer

ANY_LIBRARY = ""


class NameKind(Enum):
    """What ``TorchSymbol.names`` are."""

    SYMBOL = "mangled names"
    BEGINNING = "beginnings of mangled names, which templates and overloads go on from"
    FUNCTION = "qualified C++ functions, whatever their arguments"


class TorchSymbol(Record):
    """A symbol, or a family of symbols, that torch's libraries are assumed to have.

    ``names`` are spellings of different versions or functions of one purpose: any one of them will do. ``library`` is
    the file that defines them, ANY_LIBRARY where every library may. ``lost`` says what cannot be done without it.
    ``first`` and ``last`` are the first and the last version in which it was found (scripts/check_releases.py searches
    the wheels of all releases; docs/releases.md). ``examples`` are whole mangled names of the family: a look-up finds
    them at once, while the family itself has to be searched for. ``unoptimised``: release wheels have it inlined; it
    was found in programs built without optimisation against the headers of those versions.
    """

    names: tuple[str, ...]
    purpose: str
    lost: str
    library: str
    kind: NameKind = NameKind.SYMBOL
    first: str = "2.0.0"
    last: str = "2.15.0"
    examples: tuple[str, ...] = ()
    unoptimised: bool = False

    def begins(self, mangled: str) -> bool:
        """Whether a symbol is of this family."""
        return mangled.startswith(self.names)

    def find(self, symbolizer: Symbolizer) -> tuple[Module, Symbol] | None:
        """Where the symbol is defined, None where it is not."""
        found = (symbolizer.symbol_of(name, self.library or None) for name in self.names)
        return next((each for each in found if each is not None), None)

    def address(self, symbolizer: Symbolizer) -> int | None:
        """The symbol's absolute address, None where there is none or it is thread-local."""
        found = (symbolizer.address_of(name, self.library or None) for name in self.names)
        return next((each for each in found if each is not None), None)

    @property
    def beginnings(self) -> tuple[str, ...]:
        """How mangled names of this family begin."""
        if self.kind is not NameKind.FUNCTION:
            return self.names
        return tuple(f"{start}{nested_name(name)}E" for name in self.names for start in ("_ZN", "_ZNK"))


def nested_name(qualified: str) -> str:
    """The piece that a qualified name has in a mangled name: ``a::bc`` is ``1a2bc``; std is always ``St``."""
    parts = [f"{len(part)}{part}" for part in qualified.split("::") if part != "std"]
    return ("St" if qualified.startswith("std::") else "") + "".join(parts)
