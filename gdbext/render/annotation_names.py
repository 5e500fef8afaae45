"""What the names in the annotations of a module's records mean: also those that the module imports for type checkers
only."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from functools import cache
from typing import Any

_BLOCK = re.compile(r"^if (?:typing\.)?TYPE_CHECKING:\n((?:(?: +.*)?\n)+)", re.MULTILINE)
"""What only type checkers execute: parsing the whole module takes twenty times longer."""


@cache
def names_of(module: str) -> dict[str, Any]:
    """Name → its class, or the text of the annotation that an alias stands for."""
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
    loaded = importlib.import_module(module)  # noqa: TID251
    if hasattr(loaded, name):
        return getattr(loaded, name)
    try:
        return importlib.import_module(f"{module}.{name}")  # noqa: TID251
    except ImportError:
        return names_of(module).get(name)


def _spelled(kind: Any) -> str:
    if typing.get_args(kind):
        return f"{kind.__origin__.__name__}[{', '.join(map(_spelled, typing.get_args(kind)))}]"
    if kind in (type(None), ...):
        return "None" if kind is not ... else "..."
    return getattr(kind, "__forward_arg__", None) or getattr(kind, "__name__", None) or str(kind)


def alternatives(annotation: str) -> list[str]:
    """The types of a union, each as text; a type alone is one."""
    return [ast.unparse(node) for node in _united(ast.parse(annotation, mode="eval").body)]


def _united(node: ast.expr) -> typing.Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _united(node.left)
        yield from _united(node.right)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Union":
        for element in typing.cast(ast.Tuple, node.slice).elts:
            yield from _united(element)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _united(ast.parse(node.value, mode="eval").body)
    else:
        yield node


def arguments_of(text: str) -> list[str]:
    """The types in the brackets of ``tuple[int, ...]``, given without the brackets, each as text."""
    tree = ast.parse(f"({text},)", mode="eval").body
    return [ast.unparse(element) for element in typing.cast(ast.Tuple, tree).elts]


def meaning(owner: type, text: str) -> Any:
    """The class of that name in the module of ``owner``, or the text of an alias."""
    head, _, rest = text.partition(".")
    value = names_of(owner.__module__)[head]
    return getattr(value, rest) if rest else value
