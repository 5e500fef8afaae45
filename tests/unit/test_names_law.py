"""Names: each class and each file has one of its own, and what a docstring names exists."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from support.source.parsed import PACKAGE, nodes, sources, walk

pytestmark = pytest.mark.xdist_group("laws")

SAME_NAME = {"__init__.py", "__main__.py"}
"""Names that Python asks for."""
FOREIGN = re.compile(
    r"(Lib|Objects|InternalDocs|torchgen|concurrent|multiprocessing|importlib|tools/autograd)/.*"
    r"|torch/(_\w+|utils|nn|distributed|autograd|fx|version)\b.*"
    r"|trio/.*|triton/.*|tqdm/_monitor\.py|(futures/)?_base\.py"
)
"""Files of CPython, PyTorch, Triton and trio that docstrings give as the source of a fact."""
FOREIGN_NAMES = {
    *("_base", "_monitor", "base_events", "base_subprocess", "connection", "convert_frame", "cpp_wrapper_cpu"),
    *("futures", "gen_inplace_or_view_type", "gen_trace_type", "model", "output_graph", "pin_memory", "pool", "queue"),
    *("queues", "resume_execution", "selector_events", "selectors", "site", "static_triton_launcher", "streams"),
    *("subprocess", "synchronize", "taskgroups", "tasks", "thread", "threading", "threadpoolctl", "timeouts"),
    *("train", "triton"),
}
"""The same by their names alone, and a user's own program."""
GROUPS = {"known", "pools", "tools", "waits"}
"""Groups of entry points, by which other packages add to gdbext: they are named as modules are."""
_FILE = re.compile(r"(?<![\w./<-])((?:[\w-]+/)*[\w-]+)\.py\b")
_MODULE = re.compile(r"(?<![\w.])gdbext((?:\.[a-z_]\w*)+)")


def breaches(files: Mapping[str, str]) -> list[str]:
    """Every breach in files, given as path → source, as "file:line: what"."""
    lost = (f"{file}:{line}: there is no {what}" for file in files for line, what in _lost(files[file], files))
    return [*_shared(files), *lost]


def _shared(sources: Mapping[str, str]) -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for name, source in sources.items():
        if (file := name.rpartition("/")[2]) not in SAME_NAME:
            places[file].append(name)
        for node in nodes(source):
            if isinstance(node, ast.ClassDef):
                places[f"class {node.name}"].append(name)
    for what, where in places.items():
        if len(where) > 1:
            yield f"{where[-1]}: {what} is also in {', '.join(where[:-1])}"


def _lost(source: str, sources: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """(line, name) of what a docstring names and nobody has."""
    for line, text in _docstrings(source):
        for match in _FILE.finditer(text):
            if not _is_known(match.group(1), sources):
                yield line + text.count("\n", 0, match.start()), f"{match.group(1)}.py"
        for match in _MODULE.finditer(text):
            if not _is_module(match.group(1)[1:].replace(".", "/"), sources):
                yield line + text.count("\n", 0, match.start()), f"gdbext{match.group(1)}"


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    for node in nodes(source):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _is_known(path: str, sources: Mapping[str, str]) -> bool:
    if "/" in path:
        ours = {f"{path}.py".removeprefix("gdbext/")} & sources.keys()
        return bool(ours) or FOREIGN.match(f"{path}.py") is not None or (PACKAGE.parent / f"{path}.py").exists()
    return path in FOREIGN_NAMES or any(name.endswith(f"/{path}.py") or name == f"{path}.py" for name in sources)


def _is_module(path: str, sources: Mapping[str, str]) -> bool:
    """A file or folder, a name in the package itself (``gdbext.open``), or a group of entry points."""
    return (
        path in GROUPS
        or f"{path}.py" in sources
        or f"{path}/__init__.py" in sources
        or path in _public(sources["__init__.py"])
    )


def _public(source: str) -> set[str]:
    every = [node for node in nodes(source) if isinstance(node, ast.Assign)]
    lists = [node.value for node in every if getattr(node.targets[0], "id", "") == "__all__"]
    return {each.value for found in lists for each in walk(found) if isinstance(each, ast.Constant)}


def test_the_tree_keeps_the_law() -> None:
    assert breaches(sources()) == []


OWN = {"__init__.py": '__all__ = ["open"]', "engine/__init__.py": "", "engine/place_reader.py": "class Place: ..."}


@pytest.mark.parametrize(
    ("file", "source", "what"),
    [
        ("torch/place.py", "class Place: ...", "class Place is also in engine/place_reader.py"),
        ("torch/place_reader.py", "", "place_reader.py is also in engine/place_reader.py"),
        ("torch/x.py", '"""See place_writer.py."""', "there is no place_writer.py"),
        ("torch/x.py", 'A = 1\n"""See\nengine/writer.py."""', "there is no engine/writer.py"),
        ("torch/x.py", '"""As gdbext.engine.gone has it."""', "there is no gdbext.engine.gone"),
        (
            "torch/x.py",
            '"""See place_reader.py, engine/place_reader.py, Lib/threading.py, queue.py, gdbext.open."""',
            "",
        ),
        ("torch/x.py", '"""See gdbext.engine.place_reader and gdbext.engine."""\nA = "writer.py"', ""),
    ],
)
def test_planted_breaches(file: str, source: str, what: str) -> None:
    assert [what in each for each in breaches({**OWN, file: source})] == ([True] if what else [])
