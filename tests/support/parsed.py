"""Python source as a syntax tree, parsed once for all tests that read the whole package."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache


@cache
def tree(source: str) -> ast.Module:
    """The module."""
    return ast.parse(source)


@cache
def nodes(source: str) -> Sequence[ast.AST]:
    """Everything in it, as ast.walk gives it."""
    return tuple(ast.walk(tree(source)))
