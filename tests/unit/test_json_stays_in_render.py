"""Reports are typed: JSON values are made where ALLOWED says, and nothing else has dictionaries of anything in a
signature.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source.parsed import nodes

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = (
    "render/plain_json.py",
    "tools/known/__init__.py",
    "diagnosis/report/",
    "engine/layouts/",
    "torch/measure/",
    "engine/targets/recording/",
    "engine/vocabulary.py",
    "engine/terminal.py",
    "torch/state/setting_sources.py",
    "tools/ranks/",
    "tools/trace/chrome_trace.py",
    "tools/values/launch.py",
    "tools/collectives/",
    "tools/operators/lookup.py",
    "tools/info/info_report.py",
    "hosts/library/process.py",
    "hosts/py_spy.py",  # the JSON of another program
    "tools/report/",  # leaves members of a document out
)
DOCUMENTS = re.compile(r"tools/\w+/\w+_section\.py")
"""A section stands beside its JSON form."""
MAPPINGS = {"dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict"}


def breaches(package: Path) -> list[str]:
    """Every annotation of that kind in the package (a folder named gdbext), as "file:line: annotation"."""
    found = []
    for file in sorted(package.rglob("*.py")):
        relative = file.relative_to(package).as_posix()
        if not relative.startswith(ALLOWED) and not DOCUMENTS.fullmatch(relative):
            found += [f"{relative}:{line}: {text}" for line, text in untyped_mappings(file.read_text())]
    return found


def untyped_mappings(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each ``dict[str, Any]`` or the like, also in a quoted annotation."""
    for node in nodes(source):
        if isinstance(node, ast.Subscript) and _is_untyped_mapping(node):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "Any]" in node.value:
            yield from ((node.lineno, text) for _, text in _quoted(node.value))


def _quoted(text: str) -> Iterator[tuple[int, str]]:
    try:
        yield from untyped_mappings(text)
    except SyntaxError:
        return  # prose


def _is_untyped_mapping(node: ast.Subscript) -> bool:
    name = _last_name(node.value)
    arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    return name in MAPPINGS and [_last_name(each) for each in arguments] == ["str", "Any"]


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_only_the_renderer_of_json_has_untyped_mappings() -> None:
    assert breaches(ROOT / "gdbext") == []


def test_the_walk_sees_the_tree() -> None:
    assert any(untyped_mappings(file.read_text()) for file in (ROOT / "gdbext" / "diagnosis" / "report").glob("*.py"))


@pytest.mark.parametrize(
    "source",
    [
        "def document(report) -> dict[str, Any]: ...",
        "def view(info: Mapping[str, Any]) -> None: ...",
        "def view(info: 'Mapping[str, Any] | None') -> None: ...",
        "def view(infos: list[typing.Dict[str, typing.Any]]) -> None: ...",
        "class Report:\n    extra: collections.abc.Mapping[str, Any]",
        "def run():\n    lookup: dict[str, Any] = {}",
    ],
)
@pytest.mark.parametrize("room", ["diagnosis/bt.py", "diagnosis/samples.py", "tools/operators/op.py", "model/a.py"])
def test_a_planted_breach_is_found(tmp_path: Path, room: str, source: str) -> None:
    file = tmp_path / "gdbext" / room
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert len(breaches(tmp_path / "gdbext")) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("diagnosis/report/json_report.py", "def document(report) -> dict[str, Any]: ..."),
        ("engine/layouts/store.py", "def parse(text: str) -> dict[str, Any]: ..."),
        ("tools/operators/keysets.py", "def names() -> dict[str, str]: ..."),
        ("tools/operators/keysets.py", '"""What dict[str, Any] is not for."""'),
        ("tools/operators/keysets.py", "def anything() -> Any: ..."),
        ("tools/operators/keysets.py", "threads: dict[int, Any] = {}"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, room: str, source: str) -> None:
    file = tmp_path / "gdbext" / room
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert breaches(tmp_path / "gdbext") == []
