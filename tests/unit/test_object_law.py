"""The object law: outside of the interpreter's package an object of the target's Python is a PyRef: no function takes
the interpreter to read one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from support.source.parsed import breaches, nodes

pytestmark = pytest.mark.xdist_group("laws")


def takers(_: str, source: str) -> Iterator[tuple[int, str]]:
    """Functions with a parameter that is the interpreter."""
    for node in nodes(source):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if each.annotation is not None and "PythonRuntime" in ast.unparse(each.annotation):
                    yield each.lineno, f"takes {each.arg}"


def test_only_the_interpreters_package_takes_the_interpreter() -> None:
    threads = {"options that threads have set for themselves": ["torch/compile/dynamo_reader.py"]}
    assert breaches(takers, {"it reads objects": ["cpython/"], **threads}) == []
