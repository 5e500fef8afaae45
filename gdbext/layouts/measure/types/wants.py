"""What a compiler is asked: types, enumerations and constants, each on a source line of its own.

A line that does not compile (a type that this version lacks) is left out and its want is absent, so that one table
serves many versions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

_IDENTIFIER = re.compile(r"(?<!\w)[A-Za-z_]\w*")
_KEYWORDS = frozenset((
    "struct", "union", "enum", "const", "volatile", "unsigned", "signed", "int", "long", "short", "char", "void",
    "bool", "float", "double", "sizeof", "typename", "__typeof__",
))  # fmt: skip
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
        """Structures, enumerations, constants."""
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
