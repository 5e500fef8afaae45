"""The sizes, offsets, enumerators and constants that a compiler gave to a set of wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gdbext.layouts.measure import compiler
from gdbext.layouts.measure.extract import StructReader
from gdbext.layouts.measure.types.debug_types import CompileUnit, Die, strip, type_of, value_of
from gdbext.layouts.measure.types.wants import Wants


@dataclass
class Measured:
    """By the names of the document; ``absent`` are the wants that these headers lack, ``units`` the digests of what was
    compiled."""

    compiler: str
    structs: dict[str, Any] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)

    def add(self, other: Measured) -> None:
        """Take what ``other`` has besides; where both have a class, the one that is here stays."""
        self.structs = {**other.structs, **self.structs}
        self.enums = {**other.enums, **self.enums}
        self.constants = {**other.constants, **self.constants}
        self.absent = [*self.absent, *other.absent]
        self.units = [*self.units, *other.units]


Known = dict[str, Measured]
"""What was measured of other headers, by the digest of the unit."""


def measure(
    wants: Wants, command: str, flags: Sequence[str], folder: Path, known: Known | None = None
) -> Measured:
    """Compile ``wants`` in ``folder`` and read what came out, unless the same unit is ``known``. Raises LayoutError."""
    unit = compiler.preprocess(wants, command, flags, folder)
    found = known.get(unit.digest) if known is not None else None
    if found is None:
        found = _read(wants, compiler.build(unit))
        found.units.append(unit.digest)
        if known is not None:
            known[unit.digest] = found
    return replace(found)


def _read(wants: Wants, built: compiler.Compiled) -> Measured:
    """What the debug information says of each want."""
    unit = CompileUnit(built.library)
    reader = StructReader(unit)
    contents, variables = unit.contents(), unit.variables()
    result = Measured(built.compiler)
    result.absent += [wants.all[index].name for index in sorted(built.absent)]
    held: list[Die] = []
    for index, want in enumerate(wants.all):
        if index in built.absent:
            continue
        if want.kind == "constant":
            result.constants[want.name] = int.from_bytes(contents[f"want_{index}"], "little", signed=True)
            continue
        die = _pointee(variables[f"want_{index}"])
        if die is None or value_of(die, "DW_AT_declaration"):
            result.absent.append(want.name)
        elif want.kind == "enum":
            result.enums[want.name] = reader.enum(die)
        else:
            # C has no namespace to tell the telling classes from the rest: all are opened, none is followed.
            result.structs[want.name] = reader.struct(die, None if wants.cplusplus else True)
            held.append(die)
    if wants.cplusplus:
        _add_nested(reader, held, result)
    return result


def _pointee(variable: Die) -> Die | None:
    pointer = strip(type_of(variable))
    return None if pointer is None else strip(type_of(pointer))


def _add_nested(reader: StructReader, pending: list[Die], result: Measured) -> None:
    """Add the classes that wanted classes hold by value, and so on."""
    seen = {die.offset for die in pending}
    while pending:
        for die in reader.nested(pending.pop()):
            name = reader.type_name(die)
            if die.offset in seen or value_of(die, "DW_AT_declaration"):
                continue
            seen.add(die.offset)
            pending.append(die)
            if name not in result.structs:
                result.structs[name] = reader.struct(die)
