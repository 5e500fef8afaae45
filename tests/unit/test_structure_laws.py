"""Laws of structure: imports without circles, one name for one thing, values for objects of the target's Python.

Of the other laws on imports, which are in pyproject.toml, scripts/check sees to it with lint-imports."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter

import grimp
import pytest

from support.source.parsed import breaches, nodes, sources

pytestmark = pytest.mark.xdist_group("laws")


def test_there_are_no_circles() -> None:
    """No file imports, by whatever way round, a file that imports it: also in functions, and for types only."""
    graph = grimp.build_graph("gdbext", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) - {"gdbext", name} for name in graph.modules}
    assert "gdbext.engine.arch" in imports["gdbext.engine.targets.base_target"]
    TopologicalSorter(imports).prepare()  # raises CycleError, which has the circle


SAME_NAME = {"__init__.py", "__main__.py"}
"""Names that Python asks for."""


def test_each_class_and_each_file_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, source in sources().items():
        if (file := path.rpartition("/")[2]) not in SAME_NAME:
            places[file].append(path)
        for node in nodes(source):
            if isinstance(node, ast.ClassDef):
                places[f"class {node.name}"].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def takers(_: str, source: str) -> Iterator[tuple[int, str]]:
    """Functions with a parameter that is the interpreter."""
    for node in nodes(source):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if each.annotation is not None and "PythonRuntime" in ast.unparse(each.annotation):
                    yield each.lineno, f"takes {each.arg}"


def test_only_the_interpreters_package_takes_the_interpreter() -> None:
    """Elsewhere an object is a PyRef: no function takes the interpreter to read one."""
    threads = {"options that threads have set for themselves": ["torch/compile/dynamo_reader.py"]}
    assert breaches(takers, {"it reads objects": ["cpython/"], **threads}) == []
