#!/usr/bin/env python3
"""Counts facts about the code by its syntax trees: comparisons with None, records, parameters. Nothing here is a gate.

.venv/bin/python scripts/count_facts.py [--by-file] [FOLDER …]      (default: gdbext)
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Print each count, the comparisons with None also by package or by file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=Path, default=[ROOT / "gdbext"])
    parser.add_argument("--by-file", action="store_true", help="comparisons with None by file instead of by package")
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    places: Counter[str] = Counter()
    for file in sorted(file for folder in options.folders for file in folder.resolve().rglob("*.py")):
        text = file.read_text()
        found = Counter(facts(ast.parse(text)))
        totals.update(found)
        totals.update({"files": 1, "lines": text.count("\n")})
        inside = file.relative_to(ROOT) if ROOT in file.parents else file
        places[str(inside if options.by_file else inside.parent)] += found["comparisons with None"]
    for name, count in sorted(totals.items()):
        print(f"{count:7,} {name}")
    print("\ncomparisons with None:")
    for place, count in places.most_common():
        if count:
            print(f"{count:7,} {place}")


def facts(tree: ast.AST) -> Iterator[str]:
    """The name of each fact, once for each time that it is in the tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from ("comparisons with None" for _ in range(with_none(node)))
        elif isinstance(node, ast.ExceptHandler) and node.type and ast.unparse(node.type) == "GdbextError":
            yield "except GdbextError"
        elif isinstance(node, ast.FunctionDef):
            yield "functions"
            yield from parameters(node.args)
        elif isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "NamedTuple" for base in node.bases):
            yield "records"
            yield from ("fields of records" for each in node.body if isinstance(each, ast.AnnAssign))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_replace":
            yield "calls of _replace"


def with_none(node: ast.Compare) -> int:
    """The number of ``is None`` and ``is not None`` in a comparison."""
    pairs = zip(node.ops, node.comparators)
    return sum(
        isinstance(op, (ast.Is, ast.IsNot)) and isinstance(value, ast.Constant) and value.value is None
        for op, value in pairs
    )


def parameters(arguments: ast.arguments) -> Iterator[str]:
    """Parameters that a value type could stand for: a bare address, and the interpreter's runtime."""
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        kind = ast.unparse(each.annotation) if each.annotation else ""
        if (each.arg, kind) == ("address", "int"):
            yield "parameters address: int"
        elif kind == "PythonRuntime":
            yield "parameters of type PythonRuntime"


if __name__ == "__main__":
    main()
