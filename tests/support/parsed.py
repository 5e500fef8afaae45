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
    """Everything in it, as ast.walk gives it."""
    return walk(tree(source))


@cache
def walk(node: ast.AST) -> Sequence[ast.AST]:
    """A node and everything in it, as ast.walk gives it."""
    return tuple(ast.walk(node))


def forget() -> None:
    """Drop all trees: they are half of what a garbage collection at the end of a run would look through."""
    tree.cache_clear()
    walk.cache_clear()
