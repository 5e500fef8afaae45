"""The types of one compiled translation unit, as its debug information has them; read by pyelftools.

Only what is asked for is parsed: entries at namespace level once, to tell scopes, and the classes that are wanted.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdbext.errors import LayoutError

Die = Any
"""elftools.dwarf.die.DIE: ``tag``, ``offset``, ``attributes``, ``iter_children()``."""

CLASSES = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")
QUALIFIERS = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")


class CompileUnit:
    """The first compile unit of a shared library; we compile exactly one. Raises LayoutError."""

    def __init__(self, library: Path) -> None:
        try:
            from elftools.elf.elffile import ELFFile
        except ImportError:
            raise no_pyelftools() from None
        self._file = ELFFile(io.BytesIO(library.read_bytes()))
        self._root: Die = next(self._file.get_dwarf_info().iter_CUs()).get_top_DIE()
        self._entries = list(_at_namespace_level(self._root))
        self._starts = [die.offset for die in self._entries]

    def variables(self) -> dict[str, Die]:
        """The global variables outside of any namespace, by name."""
        return {name_of(die): die for die in self._root.iter_children() if die.tag == "DW_TAG_variable"}

    def contents(self) -> dict[str, bytes]:
        """The bytes of each data object that has a symbol: constants that the compiler evaluated."""
        found: dict[str, bytes] = {}
        symbols: Any = self._file.get_section_by_name(".symtab")
        for symbol in symbols.iter_symbols():
            if symbol["st_info"]["type"] == "STT_OBJECT" and isinstance(symbol["st_shndx"], int):
                section = self._file.get_section(symbol["st_shndx"])
                start = symbol["st_value"] - section["sh_addr"]
                found[symbol.name] = section.data()[start : start + symbol["st_size"]]
        return found

    def qualified_name(self, die: Die) -> str:
        """``die``'s name with its namespaces and enclosing classes."""
        self._find_parents(die.offset)
        names = [name_of(die) or "(anonymous)"]
        scope = die.get_parent()
        while scope is not None and scope is not self._root:
            name = name_of(scope) or ("(anonymous namespace)" if scope.tag == "DW_TAG_namespace" else "")
            names += [name] if name else []
            scope = scope.get_parent()
        return "::".join(reversed(names))

    def _find_parents(self, offset: int) -> None:
        """Walk down to an entry, whereby each on the way gets to know its parent.

        pyelftools' own search begins at the root each time, 20,000 entries in a translation unit of torch.
        """
        die = self._entries[bisect_right(self._starts, offset) - 1]
        while die is not None and die.offset < offset:
            nearest = None
            for child in die.iter_children():
                if child.offset > offset:
                    break
                nearest = child
            die = nearest


def no_pyelftools() -> LayoutError:
    """What to say where no Python has it."""
    return LayoutError(
        "pyelftools is missing: with it the debug information of a measured layout is read",
        why="no Python that was found has it, nor the folder in which install.sh keeps it",
        help="run ./install.sh, or: python3 -m pip install pyelftools (GDBEXT_PYTHON names the Python to use)",
    )


def _at_namespace_level(scope: Die) -> Iterator[Die]:
    """What stands in no class and no function, in order of offset."""
    for child in scope.iter_children():
        yield child
        if child.tag == "DW_TAG_namespace":
            yield from _at_namespace_level(child)


def value_of(die: Die, attribute: str, default: Any = None) -> Any:
    """Value of an attribute such as "DW_AT_byte_size"."""
    found = die.attributes.get(attribute)
    return default if found is None else found.value


def name_of(die: Die) -> str:
    """DW_AT_name, empty for an unnamed type."""
    return str(value_of(die, "DW_AT_name", b"").decode("utf-8", "replace"))


def type_of(die: Die) -> Die | None:
    """The entry that DW_AT_type refers to; None is void."""
    return die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None


def strip(die: Die | None) -> Die | None:
    """The type behind typedefs, const and volatile."""
    for _ in range(64):
        if die is None or die.tag not in QUALIFIERS:
            return die
        die = type_of(die)
    return die
