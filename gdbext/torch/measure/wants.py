"""The questions to a compiler: types, enumerations and constants, each on a source line of its own.

A line that does not compile (a type that this version lacks) is left out and its want is absent, so that one table
serves many versions.

The parts of a layout that are measured already, kept in the cache until the layout is whole.

Where a measurement is interrupted, the next one goes on behind them.

The types of one compiled translation unit, as its debug information has them; read by pyelftools.

Only what is asked for is parsed: entries at namespace level once, to tell scopes, and the classes that are wanted.
"""

from __future__ import annotations

import io
import os
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Callable

from gdbext import cache
from gdbext.engine.formats.elf import build_id_of_file
from gdbext.engine.layouts import store
from gdbext.errors import LayoutError
from gdbext.torch.measure.pack import write

_IDENTIFIER = re.compile(r"(?<!\w)[A-Za-z_]\w*")
_KEYWORDS = frozenset(
    (
        "struct",
        "union",
        "enum",
        "const",
        "volatile",
        "unsigned",
        "signed",
        "int",
        "long",
        "short",
        "char",
        "void",
        "bool",
        "float",
        "double",
        "sizeof",
        "typename",
        "__typeof__",
    )
)
FILE = "wants"
"""The name that the wants' lines have in the compiler's messages."""


@dataclass(frozen=True)
class Want:
    """One of them: ``kind`` is "struct", "enum" or "constant", ``name`` that in the document."""

    kind: str
    name: str
    expression: str

    @property
    def identifiers(self) -> set[str]:
        """Names in the expression that some header must declare."""
        return set(_IDENTIFIER.findall(self.expression)) - _KEYWORDS

    def source(self, index: int, cplusplus: bool) -> str:
        """The line: a variable want_INDEX, that constant or a pointer to that type, which must be complete."""
        if self.kind == "constant":
            qualifier = 'extern "C" const constexpr' if cplusplus else "const"
            return f"{qualifier} long long want_{index} __attribute__((used)) = (long long)({self.expression});"
        return (
            f"typedef {self.expression} want_t_{index}; char want_s_{index}[sizeof(want_t_{index})]; "
            f"want_t_{index} *want_{index};"
        )


@dataclass(frozen=True)
class Wants:
    """All of them, behind a ``prologue`` that includes headers.

    ``structs`` and ``enums`` map the name in the document to a type expression ("" means: the same as the
    name), ``constants`` to an integral constant expression.
    """

    prologue: str
    structs: Mapping[str, str]
    enums: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    cplusplus: bool = True

    @cached_property
    def all(self) -> tuple[Want, ...]:
        """All structures, enumerations and constants."""
        tables = {"struct": self.structs, "enum": self.enums, "constant": self.constants}
        return tuple(
            Want(kind, name, expression or name) for kind, table in tables.items() for name, expression in table.items()
        )

    def source(self, absent: Collection[int]) -> str:
        """The translation unit, with an empty line for each absent want: the number of a line is that of its want."""
        lines = ("" if i in absent else want.source(i, self.cplusplus) for i, want in enumerate(self.all))
        return f'{self.prologue}\n#line 1 "{FILE}"\n' + "\n".join(lines) + "\n"

    def unheard_of(self, headers: bytes) -> set[int]:
        """The wants with a name that occurs nowhere in the preprocessed ``headers``: they cannot compile."""
        heard = {word.decode() for word in set(re.findall(rb"[A-Za-z_]\w*", headers))}
        return {index for index, want in enumerate(self.all) if want.identifiers - heard}


class Parts:
    """Parts of one build of PyTorch; without a ``build_id`` nothing is kept."""

    def __init__(self, build_id: str | None = None) -> None:
        folder = Path(store.layout_cache())
        self._stem = folder / build_id if build_id and cache.may_fill(str(folder)) else None

    @classmethod
    def of(cls, torch: Path) -> Parts:
        """Those of the PyTorch in that folder."""
        return cls(build_id_of_file(torch / "lib" / store.TORCH_LIBRARY))

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The part (JSON) that an earlier measurement made, else what ``make`` returns."""
        path = self._path(name)
        if not path:
            return make()
        try:
            if path.stat().st_uid == os.geteuid():
                return store.read_document(path)
        except (OSError, LayoutError):
            pass
        made = make()
        write(made, path)
        return made

    def remove(self, *names: str) -> None:
        """Remove the files of these parts, once the layout is complete."""
        for name in names:
            path = self._path(name)
            if path:
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path | None:
        return self._stem.with_name(f"{self._stem.name}.{name}.part") if self._stem else None


Die = Any
"""elftools.dwarf.die.DIE: ``tag``, ``offset``, ``attributes``, ``iter_children()``."""

CLASSES = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")
QUALIFIERS = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")


class CompileUnit:
    """The first compile unit of a shared library; we compile exactly one. Raises LayoutError."""

    def __init__(self, library: Path) -> None:
        try:
            from elftools.elf.elffile import ELFFile  # 37 ms, and it may be missing
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
    """The error where no Python has pyelftools."""
    return LayoutError(
        "pyelftools is missing: with it the debug information of a measured layout is read",
        why="no Python that was found has it, nor the folder in which install.sh keeps it",
        help="run ./install.sh, or: python3 -m pip install pyelftools (GDBEXT_PYTHON names the Python to use)",
    )


def _at_namespace_level(scope: Die) -> Iterator[Die]:
    """Entries that stand in no class and no function, in order of offset."""
    for child in scope.iter_children():
        yield child
        if child.tag == "DW_TAG_namespace":
            yield from _at_namespace_level(child)


def value_of(die: Die, attribute: str, default: Any = None) -> Any:
    """Value of an attribute such as "DW_AT_byte_size"."""
    found = die.attributes.get(attribute)
    return found.value if found else default


def name_of(die: Die) -> str:
    """DW_AT_name, empty for an unnamed type."""
    return str(value_of(die, "DW_AT_name", b"").decode("utf-8", "replace"))


def type_of(die: Die) -> Die | None:
    """The entry that DW_AT_type refers to; None is void."""
    return die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None


def strip(die: Die | None) -> Die | None:
    """The type behind typedefs, const and volatile."""
    for _ in range(64):
        if not die or die.tag not in QUALIFIERS:
            return die
        die = type_of(die)
    return die
