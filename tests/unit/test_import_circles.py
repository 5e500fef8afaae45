"""No file imports, by whatever way round, a file that imports it: also in functions, and for types only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.source.package_imports import existing, imported, module_name

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

ROOT = Path(__file__).resolve().parents[2]


def imports(package: Path) -> dict[str, set[str]]:
    """Each module of the package (a folder named gdbext) → the modules of it that it imports."""
    files = sorted(package.rglob("*.py"))
    modules = {module_name(file.relative_to(package)) for file in files}
    found = {}
    for file in files:
        relative = file.relative_to(package)
        names = (name for _, name in imported(relative, file.read_text()) if name.startswith("gdbext."))
        targets = {existing(name.partition(".")[2], modules) for name in names}
        found[module_name(relative)] = targets - {"", module_name(relative)}
    return found


def circles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """One way round for each module that can be reached from itself, shortest first found, each circle once."""
    told: set[frozenset[str]] = set()
    for start in sorted(graph):
        way = _way_back(graph, start)
        if way and frozenset(way) not in told:
            told.add(frozenset(way))
            yield way


def _way_back(graph: Mapping[str, set[str]], start: str) -> list[str]:
    ways = [[start, target] for target in sorted(graph[start])]
    seen: set[str] = set()
    for way in ways:  # grows while it is gone through: the shortest ways first
        last = way[-1]
        if last == start:
            return way[:-1]
        if last not in seen:
            seen.add(last)
            ways += [[*way, target] for target in sorted(graph.get(last, ()))]
    return []


def test_there_are_no_circles() -> None:
    assert [" → ".join(circle) for circle in circles(imports(ROOT / "gdbext"))] == []


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"a": "import gdbext.b", "b": "import gdbext.c", "c": "import gdbext.a"}, ["a", "b", "c"]),
        ({"a": "def late():\n    from gdbext.b import x", "b": "from gdbext import a"}, ["a", "b"]),
        ({"a": "if TYPE_CHECKING:\n    from gdbext.b import x", "b": "import gdbext.a"}, ["a", "b"]),
        ({"a": "import importlib\nimportlib.import_module('gdbext.b')", "b": "import gdbext.a"}, ["a", "b"]),
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, files: dict[str, str], found: list[str]) -> None:
    assert list(circles(imports(_package(tmp_path, files)))) == [found]


def test_what_is_no_circle(tmp_path: Path) -> None:
    files = {"a": "import gdbext.b\nimport gdbext.c", "b": "import gdbext.c", "c": "import gdbext.unknown\nimport os"}
    assert list(circles(imports(_package(tmp_path, files)))) == []


def _package(folder: Path, files: Mapping[str, str]) -> Path:
    for name, source in files.items():
        file = folder / "gdbext" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source + "\n")
    return folder / "gdbext"
