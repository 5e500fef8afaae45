"""Names: each class and each file has one of its own, what a docstring names exists, and a file is a topic."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source.parsed import nodes, walk

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

ROOT = Path(__file__).resolve().parents[2]
LEAST_LINES = 40
MOST_MODULES = 430
"""A file is a topic: a new noun goes into the file of its topic."""
MOST_IMPORTS = 0.06
"""Lines of imports among all lines; where many names of a module are used, the module is imported."""
MOST_LINES = 40
"""Lines of a function."""
MOST_OF_A_FILE = 400
TOO_LONG = {
    "cpython/abi/python_structures.py": 520, "cpython/sync/debtors.py": 440, "cpython/wait_view.py": 420,
    "diagnosis/diagnose.py": 420, "diagnosis/verdict/advice.py": 440, "diagnosis/verdict/sentences.py": 420,
    "diagnosis/waits/python_waits.py": 480, "engine/targets/live/snapshot_target.py": 440,
    "hosts/gdb/gdb_breakpoints.py": 440, "tools/table.py": 600, "torch/assumed_symbols.py": 490,
}  # fmt: skip
"""Files of more lines, with the most that each may have. These numbers may only become less: whoever makes a file
longer splits it by topic, and merges two small ones of one topic elsewhere."""
SHORT = {
    "init.py": "gdb sources it into the user's namespace: it only loads what does the work",
}
"""Files that may be shorter, with the reason."""
SAME_NAME = {"__init__.py", "__main__.py"}
"""Names that Python asks for."""
FOREIGN = re.compile(
    r"(Lib|Objects|InternalDocs|torchgen|concurrent|multiprocessing|importlib|tools/autograd)/.*"
    r"|torch/(_\w+|utils|nn|distributed|autograd|fx|version)\b.*"
    r"|trio/.*|triton/.*|tqdm/_monitor\.py|(futures/)?_base\.py"
)
"""Files of CPython, PyTorch, Triton and trio that docstrings give as the source of a fact."""
FOREIGN_NAMES = {
    "_base", "_monitor", "base_events", "base_subprocess", "connection", "convert_frame", "cpp_wrapper_cpu",
    "futures", "gen_inplace_or_view_type", "gen_trace_type", "model", "output_graph", "pin_memory", "pool", "queue",
    "queues", "resume_execution", "selector_events", "selectors", "site",
    "static_triton_launcher", "streams", "subprocess",
    "synchronize", "taskgroups", "tasks", "thread", "threading", "threadpoolctl", "timeouts", "train", "triton",
}  # fmt: skip
"""The same by their names alone, and a user's own program."""
GROUPS = {"known", "pools", "tools", "waits"}
"""Groups of entry points, by which other packages add to gdbext: they are named as modules are."""
_FILE = re.compile(r"(?<![\w./<-])((?:[\w-]+/)*[\w-]+)\.py\b")
_MODULE = re.compile(r"(?<![\w.])gdbext((?:\.[a-z_]\w*)+)")


def breaches(package: Path) -> list[str]:
    """Every breach in the package (a folder named gdbext), as "file: what"."""
    sources = {file.relative_to(package).as_posix(): file.read_text() for file in sorted(package.rglob("*.py"))}
    found = [*_shared(sources), *_short(sources), *_too_long(sources)]
    for name, source in sources.items():
        found += [f"{name}:{line}: there is no {what}" for line, what in _lost(source, sources)]
    return found


def _shared(sources: dict[str, str]) -> Iterator[str]:
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


def _short(sources: dict[str, str]) -> Iterator[str]:
    for name, source in sources.items():
        lines = len(source.splitlines())
        if lines < LEAST_LINES and name not in SHORT and not name.endswith("__init__.py"):
            yield f"{name}: has {lines} lines: merge it with who uses it"


def _too_long(sources: dict[str, str]) -> Iterator[str]:
    for name, source in sources.items():
        lines, most = len(source.splitlines()), TOO_LONG.get(name, MOST_OF_A_FILE)
        if lines > most:
            yield f"{name}: has {lines} lines of at most {most}: split it by topic"


def _lost(source: str, sources: dict[str, str]) -> Iterator[tuple[int, str]]:
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


def _is_known(path: str, sources: dict[str, str]) -> bool:
    if "/" in path:
        ours = {f"{path}.py".removeprefix("gdbext/")} & sources.keys()
        return bool(ours) or FOREIGN.match(f"{path}.py") is not None or (ROOT / f"{path}.py").exists()
    return path in FOREIGN_NAMES or any(name.endswith(f"/{path}.py") or name == f"{path}.py" for name in sources)


def _is_module(path: str, sources: dict[str, str]) -> bool:
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
    assert breaches(ROOT / "gdbext") == []


def test_the_package_keeps_its_measures() -> None:
    sources = [file.read_text() for file in (ROOT / "gdbext").rglob("*.py")]
    assert len(sources) <= MOST_MODULES
    imports = sum(_lines(node) for source in sources for node in nodes(source) if isinstance(node, IMPORTS))
    assert imports <= MOST_IMPORTS * sum(len(source.splitlines()) for source in sources)


def test_no_function_is_long() -> None:
    sources = {file: file.read_text() for file in (ROOT / "gdbext").rglob("*.py")}
    assert [found for file, source in sources.items() for found in _long(file.name, source)] == []


def test_a_long_function_is_found() -> None:
    body = "    pass\n" * MOST_LINES
    assert list(_long("x.py", f"def f():\n{body}")) == ["x.py: f has 41 lines"]
    inside = "        pass\n" * (MOST_LINES - 1)
    assert list(_long("x.py", f"class A:\n    async def f():\n{inside}")) == []


IMPORTS = (ast.Import, ast.ImportFrom)


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _long(name: str, source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _lines(node) > MOST_LINES:
            yield f"{name}: {node.name} has {_lines(node)} lines"


def test_no_reason_is_left_over() -> None:
    assert [name for name in SHORT if len((ROOT / "gdbext" / name).read_text().splitlines()) >= LEAST_LINES] == []


LONG = "\n" * LEAST_LINES


@pytest.mark.parametrize(
    ("file", "source", "found"),
    [
        ("torch/place.py", "class Place: ...", "class Place is also in engine/place_reader.py"),
        ("torch/place_reader.py", "", "place_reader.py is also in engine/place_reader.py"),
        ("torch/x.py", '"""See place_writer.py."""', "there is no place_writer.py"),
        ("torch/x.py", 'A = 1\n"""See\nengine/writer.py."""', "there is no engine/writer.py"),
        ("torch/x.py", '"""As gdbext.engine.gone has it."""', "there is no gdbext.engine.gone"),
        ("torch/x.py", '"""As gdbext.close does."""', "there is no gdbext.close"),
    ],
)
def test_a_planted_breach_is_found(tmp_path: Path, file: str, source: str, found: str) -> None:
    reports = breaches(_planted(tmp_path, file, source + LONG))
    assert len(reports) == 1, reports
    assert reports[0].startswith(file)
    assert found in reports[0]


def test_a_long_file_is_found(tmp_path: Path) -> None:
    lines = "A = 1\n" * MOST_OF_A_FILE
    (found,) = breaches(_planted(tmp_path, "torch/x.py", lines))
    assert "torch/x.py: has 401 lines of at most 400" in found


def test_no_long_file_is_left_over() -> None:
    """A file that has become short, or much shorter, is no such exception any more."""
    lengths = {name: len((ROOT / "gdbext" / name).read_text().splitlines()) for name in TOO_LONG}
    assert {name for name, lines in lengths.items() if lines <= MOST_OF_A_FILE or lines < TOO_LONG[name] - 60} == set()


def test_a_short_file_is_found(tmp_path: Path) -> None:
    assert breaches(_planted(tmp_path, "torch/x.py", "A = 1")) == ["torch/x.py: has 1 lines: merge it with who uses it"]


@pytest.mark.parametrize(
    "source",
    [
        '"""See place_reader.py, engine/place_reader.py, Lib/threading.py, queue.py, torch/_ops.py, gdbext.open."""',
        '"""See gdbext.engine.place_reader and gdbext.engine."""',
        "A = 'writer.py'",
    ],
)
def test_what_the_law_allows(tmp_path: Path, source: str) -> None:
    assert breaches(_planted(tmp_path, "torch/x.py", source + LONG)) == []


def _planted(folder: Path, name: str, source: str) -> Path:
    package = folder / "gdbext"
    own = {
        "__init__.py": '__all__ = ["open"]',
        "engine/__init__.py": "",
        "engine/place_reader.py": f"class Place: ...{LONG}",
    }
    for path, text in {**own, name: source}.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text + "\n")
    return package
