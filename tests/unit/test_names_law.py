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


@pytest.mark.parametrize(
    ("file", "source", "shared"),
    [
        ("torch/place.py", "class Place: ...", ["class Place: engine/reader.py, torch/place.py"]),
        ("torch/reader.py", "", ["reader.py: engine/reader.py, torch/reader.py"]),
        ("torch/__init__.py", "class OtherPlace: ...", []),
    ],
)
def test_planted_names(file: str, source: str, shared: list[str]) -> None:
    files = {"engine/__init__.py": "", "engine/reader.py": "class Place: ...", file: source}
    assert list(shared_names(files)) == shared
