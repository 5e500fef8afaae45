"""Python source as a syntax tree, parsed once for all tests that read the whole package."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache


@cache
def tree(source: str) -> ast.Module:
    """The module."""
    return ast.parse(source)


def nodes(source: str) -> Sequence[ast.AST]:
    """Everything in it, as ``walk`` gives it."""
    return walk(tree(source))


_NO_NODES = {"ctx", "id", "attr", "kind", "type_comment", "lineno", "level", "module", "asname", "is_async", "simple"}
"""Fields of texts and numbers, and of contexts (Load, Store): a third of all nodes, of use only where they stand."""


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """The other fields of each kind of node."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        names = () if kind is ast.Constant else tuple(name for name in kind._fields if name not in _NO_NODES)
        return self.setdefault(kind, names)


_FIELDS = _Fields()


@cache
def walk(node: ast.AST) -> Sequence[ast.AST]:
    """A node and everything in it but contexts, in the order of ast.walk, which takes five times as long."""
    found = [node]
    for each in found:
        for name in _FIELDS[type(each)]:
            value = getattr(each, name)
            if isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
    return tuple(found)


def forget() -> None:
    """Drop all trees: they are half of what a garbage collection at the end of a run would look through."""
    tree.cache_clear()
    walk.cache_clear()
