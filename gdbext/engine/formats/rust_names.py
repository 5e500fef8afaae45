"""The paths of functions in Rust's mangled names, version 0 (doc.rust-lang.org/rustc/symbol-mangling/v0.html)."""

from __future__ import annotations

import re

from gdbext.engine.numbers import number

_TOKEN = re.compile(r"s[0-9a-zA-Z]*_|B[0-9a-zA-Z]*_|N[a-zA-Z]|(?P<length>0|[1-9]\d*)_?|.")
"""A disambiguator, a reference back, a namespace, the length of an identifier, or the tag of a path or type."""
_MOST = 8


def rust_path(mangled: str) -> tuple[str, ...]:
    """The first identifiers of a mangled name, from the crate on: ``("rayon_core", "sleep", "Sleep", "sleep")``, and
    behind those of the function those of its generic arguments; () for a name of another kind."""
    if not mangled.startswith("_R"):
        return ()
    names: list[str] = []
    at = 2
    while len(names) < _MOST and (token := _TOKEN.match(mangled, at)):
        at = token.end()
        length = min(number(token["length"] or "") or 0, len(mangled))
        if length:
            names.append(mangled[at : at + length])
            at += length
    return tuple(names)
