"""Resolves the names in annotations of records, including those that a module imports for type checkers only."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from functools import cache
from typing import Any

_BLOCK = re.compile(r"^if (?:typing\.)?TYPE_CHECKING:\n((?:(?: +.*)?\n)+)", re.MULTILINE)
"""The block that only type checkers execute: parsing the whole module takes twenty times longer."""


@cache
def annotation_scope(module: str) -> dict[str, Any]:
    """Name in a module's annotations → its class, or the text that an alias stands for."""
    loaded = importlib.import_module(module)  # noqa: TID251
    names: dict[str, Any] = {name: value for name, value in vars(loaded).items() if inspect.isclass(value)}
    for block in _BLOCK.findall(inspect.getsource(loaded)):
        for line in ast.parse(inspect.cleandoc(block)).body:
            if isinstance(line, ast.ImportFrom) and line.module and line.module.startswith("gdbext"):
                for alias in line.names:
                    names[alias.asname or alias.name] = _imported(line.module, alias.name)
            elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                names[line.targets[0].id] = ast.unparse(line.value)
    for name, value in vars(loaded).items():
        if typing.get_origin(value) is typing.Union:
            names[name] = " | ".join(map(_spelled, typing.get_args(value)))
    return names


def _imported(module: str, name: str) -> Any:
    """The value of ``from module import name``, also if ``module`` imports the name for type checkers only."""
    loaded = importlib.import_module(module)  # noqa: TID251
    if hasattr(loaded, name):
        return getattr(loaded, name)
    try:
        return importlib.import_module(f"{module}.{name}")  # noqa: TID251
    except ImportError:
        return annotation_scope(module).get(name)


def _spelled(kind: Any) -> str:
    """A type as text, as in an annotation."""
    if typing.get_args(kind):
        return f"{kind.__origin__.__name__}[{', '.join(map(_spelled, typing.get_args(kind)))}]"
    if kind in (type(None), ...):
        return "None" if kind is not ... else "..."
    return getattr(kind, "__forward_arg__", None) or getattr(kind, "__name__", None) or str(kind)


def alternatives(annotation: str) -> list[str]:
    """The types in an annotation, as texts: several for a union."""
    return [ast.unparse(node) for node in _union_members(ast.parse(annotation, mode="eval").body)]


def _union_members(node: ast.expr) -> typing.Iterator[ast.expr]:
    """The members of ``A | B`` or ``Union[A, B]``, also in quotes; any other annotation is its only member."""
    if isinstance(node, ast.BinOp):
        yield from _union_members(node.left)
        yield from _union_members(node.right)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Union":
        for element in typing.cast(ast.Tuple, node.slice).elts:
            yield from _union_members(element)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _union_members(ast.parse(node.value, mode="eval").body)
    else:
        yield node


def arguments_of(text: str) -> list[str]:
    """The types in ``text``, the part between the brackets of ``tuple[int, ...]``, each as text."""
    tree = ast.parse(f"({text},)", mode="eval").body
    return [ast.unparse(element) for element in typing.cast(ast.Tuple, tree).elts]


def resolve_name(owner: type, name: str) -> Any:
    """The class that ``name`` stands for in the module of ``owner``, or the text that an alias stands for."""
    head, _, rest = name.partition(".")
    value = annotation_scope(owner.__module__)[head]
    return getattr(value, rest) if rest else value
