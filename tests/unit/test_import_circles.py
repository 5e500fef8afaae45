"""No file imports, by whatever way round, a file that imports it: also in functions, and for types only. Of the other
laws on imports, which are in pyproject.toml, scripts/check sees to it with lint-imports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """One of those that there are."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_there_are_no_circles() -> None:
    graph = grimp.build_graph("gdbext", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) - {"gdbext", name} for name in graph.modules}
    assert "gdbext.engine.arch" in imports["gdbext.engine.targets.base_target"]
    assert circle(imports) == []


@pytest.mark.parametrize(("last", "is_circle"), [("a", True), ("d", False)])
def test_a_circle_is_found(last: str, is_circle: bool) -> None:
    assert bool(circle({"a": ["b"], "b": ["c"], "c": [last]})) is is_circle
