"""Each class and each file has a name of its own."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest

from support.source.parsed import nodes, sources

pytestmark = pytest.mark.xdist_group("laws")

SAME_NAME = {"__init__.py", "__main__.py"}
"""Names that Python asks for."""


def test_the_tree_keeps_the_law() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, source in sources().items():
        if (file := path.rpartition("/")[2]) not in SAME_NAME:
            places[file].append(path)
        for node in nodes(source):
            if isinstance(node, ast.ClassDef):
                places[f"class {node.name}"].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
