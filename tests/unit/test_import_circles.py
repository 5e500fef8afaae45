"""No file imports, by whatever way round, a file that imports it: also in functions, and for types only. Of the other
laws on imports, which are in pyproject.toml, scripts/check sees to it with lint-imports."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_there_are_no_circles() -> None:
    graph = grimp.build_graph("gdbext", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) - {"gdbext", name} for name in graph.modules}
    assert "gdbext.engine.arch" in imports["gdbext.engine.targets.base_target"]
    TopologicalSorter(imports).prepare()  # raises CycleError, which has the circle
