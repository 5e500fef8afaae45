"""Python source as a syntax tree, parsed once for all tests that read the whole package."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

PACKAGE = Path(__file__).resolve().parents[3] / "gdbext"


@cache
def tree(source: str) -> ast.Module:
    return ast.parse(source)


def nodes(source: str) -> Sequence[ast.AST]:
    return walk(tree(source))


def calls(source: str) -> Iterator[ast.Call]:
    return (node for node in nodes(source) if isinstance(node, ast.Call))


def last_name(node: ast.AST) -> str:
    """``c`` of ``a.b.c``; "" where it is no name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@cache
def walk(node: ast.AST) -> Sequence[ast.AST]:
    """A node and everything in it but contexts, in the order of ast.walk, which takes twice as long."""
    found = [node]
    for each in found:
        for value in vars(each).values():
            if isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
    return tuple(found)


def forget() -> None:
    """Drop all trees: they are half of what a garbage collection at the end of a run would look through."""
    tree.cache_clear()
    walk.cache_clear()


def sources() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def breaches(
    find: Callable[[str, str], Iterable[tuple[int, str]]], declared: Mapping[str, Iterable[str]] = MappingProxyType({})
) -> list[str]:
    """What ``find`` finds in gdbext, given a file's path and source, as "file:line: what", but in files and folders
    (with a slash) that are declared, by the reason; and each of these in which there is nothing."""
    found, needed, names = [], set(), {name for files in declared.values() for name in files}
    for file, source in sources().items():
        findings = list(find(file, source))
        rows = {name for name in names if name == file or (name.endswith("/") and file.startswith(name))}
        needed |= rows if findings else set()
        found += [] if rows else [f"{file}:{line}: {what}" for line, what in findings]
    return found + [f"{name}: must not be declared" for name in sorted(names - needed)]
