"""Each class and each file has a name of its own."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from support.source.parsed import nodes, sources

pytestmark = pytest.mark.xdist_group("laws")

SAME_NAME = {"__init__.py", "__main__.py"}
"""Names that Python asks for."""


def shared_names(files: Mapping[str, str]) -> Iterator[str]:
    """Names that two files (path → source) have, or two classes in them."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, source in files.items():
        if (file := path.rpartition("/")[2]) not in SAME_NAME:
            places[file].append(path)
        for node in nodes(source):
            if isinstance(node, ast.ClassDef):
                places[f"class {node.name}"].append(path)
    return (f"{what}: {', '.join(where)}" for what, where in places.items() if len(where) > 1)


def test_the_tree_keeps_the_law() -> None:
    assert list(shared_names(sources())) == []


def test_planted_names() -> None:
    files = {"a/__init__.py": "", "b/__init__.py": "", "a/x.py": "class Place: ...", "b/x.py": "class Place: ..."}
    assert list(shared_names(files)) == ["x.py: a/x.py, b/x.py", "class Place: a/x.py, b/x.py"]
