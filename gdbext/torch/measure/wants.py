"""The questions to a compiler: types, enumerations and constants, each on a source line of its own.

wants.json has a table for each translation unit, which maps names in the layout documents to C++ or C expressions; ""
means: the same as the name. Instantiations get short names (``.map``, ``.entry``), for their full ones change with
every standard library. A type that a version of the headers lacks does not compile there and is absent.
Private members are measured with -fno-access-control. Structures that CPython keeps in a .c file are declared in
wants.json as that file has them; tests compare them with the debug information of interpreters.

``stubs/TABLE`` holds stand-ins for headers that wheels do not ship: gloo's, CUDA's, NCCL's, and those of PyTorch's that
wrap them. They are enough for classes that keep objects of those libraries by pointer.

All data is read at import: a measuring process that gave up root's rights may not be able to read our files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from gdbext.cpython.abi import python_structures
from gdbext.engine.layouts.declarations import wanted
from gdbext.torch import structures
from gdbext.torch.distributed import group_structures
from gdbext.torch.state import setting_structures
from gdbext.torch.values import value_structures

FILE = "wants"
"""The name that the wants' lines have in the compiler's messages."""
_FOLDER = Path(__file__).parent
_TABLES: dict[str, Any] = json.loads((_FOLDER / "wants.json").read_text())
_STUBS = {
    path.relative_to(_FOLDER / "stubs").parts: path.read_text()
    for path in (_FOLDER / "stubs").rglob("*.h*")
    if path.is_file()
}
"""(table, folder, …, file) → text."""


class Want(NamedTuple):
    """One question to the compiler."""

    kind: str
    """"struct", "enum" or "constant"."""
    name: str
    """The name in the layout document."""
    expression: str
    """The type or the constant in C++ or C."""

    def source(self, index: int, cplusplus: bool) -> str:
        """The source line: a variable want_INDEX, which is the constant, or a pointer to the type (a complete one)."""
        if self.kind == "constant":
            qualifier = 'extern "C" const constexpr' if cplusplus else "const"
            return f"{qualifier} long long want_{index} __attribute__((used)) = (long long)({self.expression});"
        return (
            f"typedef {self.expression} want_t_{index}; char want_s_{index}[sizeof(want_t_{index})]; "
            f"want_t_{index} *want_{index};"
        )


@dataclass(frozen=True)
class Wants:
    """The wants of a translation unit, after a ``prologue`` that includes headers."""

    prologue: str
    structs: Mapping[str, str]
    enums: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    cplusplus: bool = True

    @cached_property
    def all(self) -> tuple[Want, ...]:
        """The wants in the order of their source lines, which are their indices."""
        tables = {"struct": self.structs, "enum": self.enums, "constant": self.constants}
        return tuple(
            Want(kind, name, expression or name) for kind, table in tables.items() for name, expression in table.items()
        )

    def source(self, absent: Collection[int]) -> str:
        """The text of the translation unit. In the compiler's messages line N + 1 is want N; it is empty if N is in
        ``absent``."""
        lines = ("" if i in absent else want.source(i, self.cplusplus) for i, want in enumerate(self.all))
        return f'{self.prologue}\n#line 1 "{FILE}"\n' + "\n".join(lines) + "\n"

    def absent_from(self, headers: bytes) -> set[int]:
        """Indices of the wants with a name that the preprocessed ``headers`` do not have, so that they cannot
        compile."""
        words = {*_TABLES["keywords"]} | {word.decode() for word in set(re.findall(rb"[A-Za-z_]\w*", headers))}
        identifier = re.compile(r"(?<!\w)[A-Za-z_]\w*")
        return {
            index for index, want in enumerate(self.all) if not words.issuperset(identifier.findall(want.expression))
        }


def wants_of(table: str) -> Wants:
    """The wants of a table in wants.json ("torch", "settings", "distributed", "nccl-groups" or "cpython") and those
    that readers declare. The source includes each header that exists."""
    readers = {
        "torch": (structures, value_structures),
        "settings": (setting_structures,),
        "distributed": (group_structures,),
        "cpython": (python_structures,),
    }
    declared = dict.fromkeys((nccl.OF for nccl in group_structures.NCCL), "")
    if table != "nccl-groups":
        declared = wanted(*readers[table])
    row = _TABLES[table]
    includes = (f"#if __has_include(<{header}>)\n#include <{header}>\n#endif" for header in row.get("headers", ()))
    return Wants(
        "\n".join([*row.get("before", ()), *includes, *row.get("after", ())]),
        {**row.get("structs", {}), **declared},
        row.get("enums", {}),
        row.get("constants", {}),
        cplusplus=table != "cpython",
    )


def write_stubs(table: str, folder: Path) -> None:
    """Write a table's stand-ins for headers into ``folder``; the table "every" has those that all of PyTorch needs."""
    for (owner, *parts), text in _STUBS.items():
        if owner == table:
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
