"""What the files of a package (a folder named gdbext) import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support.source.parsed import nodes


def module_name(relative: Path) -> str:
    """process/elf.py is "process.elf", process/__init__.py is "process"."""
    parts = relative.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(relative: Path, source: str) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything the file imports, anywhere in it, also for type checking only."""
    package = ["gdbext", *relative.parent.parts]
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _imports_by_name(node):
            yield node.lineno, str(node.args[0].value)  # type: ignore[attr-defined]


def _imports_by_name(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    constant = bool(call.args) and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    return name in ("import_module", "__import__") and constant


def existing(name: str, modules: set[str]) -> str:
    """The module behind "process.elf.ElfImage": the longest prefix that is one."""
    parts = name.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in modules), "")
