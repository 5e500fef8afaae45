"""docs/architecture.md: each file, folder and class that it names is there."""

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
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FOLDERS = (ROOT, ROOT / "gdbext", ROOT / "tests", ROOT / "tests" / "unit")
"""Where paths on the page begin."""
FOREIGN = {"arch/arm64", "Include/internal", "Objects/locations.md", "PREFIX/include", "asm-generic"}
"""Beginnings of paths in CPython and Linux, and of the user's."""
FUTURE = {
    "architecture.py",
    "decode.py",
    "engine/arch/aarch64",
    "hosts/NAME",
    "patterns.py",
    "conventions.py",
    "syscalls.py",
    "tools/NAME",
}
"""What is still to be written by who follows the page."""
FOREIGN_CLASSES = {"DEBUGGERS", "PyDictValues", "RTLD", "NT", "DWARF"}
_PATH = re.compile(r"(?<![\w./$~-])((?:[\w-]+/)+[\w.-]*\w|[\w-]+\.(?:py|md|json))\b")
_FOLDER = re.compile(r"`((?:[\w-]+/)+)`")
_CLASS = re.compile(r"`([A-Z][a-z]\w*[a-z])(?:\(.*?\))?`")


def lost_paths(page: str) -> Iterator[str]:
    """Files and folders that the page names and nobody has."""
    for path in dict.fromkeys([*_PATH.findall(page), *_FOLDER.findall(page)]):
        if path.startswith(tuple(FOREIGN | FUTURE)) or "NAME" in path:
            continue
        is_prose = path not in _FOLDER.findall(page) and "." not in path  # an alternative: bt/all-threads
        if is_prose and "/" in path and not _exists(path.split("/")[0]):
            continue
        if not _exists(path):
            yield path


def _exists(path: str) -> bool:
    if any((folder / path).exists() for folder in (*FOLDERS, ROOT / "docs")):
        return True
    return "/" not in path.rstrip("/") and any(ROOT.glob(f"gdbext/**/{path.rstrip('/')}"))


def lost_classes(page: str) -> Iterator[str]:
    """Classes that the page names and nobody has."""
    known = {
        node.name
        for file in (ROOT / "gdbext").rglob("*.py")
        for node in nodes(file.read_text())
        if isinstance(node, ast.ClassDef)
    }
    yield from (name for name in dict.fromkeys(_CLASS.findall(page)) if name not in known | FOREIGN_CLASSES)


def test_what_it_names_is_there() -> None:
    assert [*lost_paths(PAGE), *lost_classes(PAGE)] == []


def test_what_is_not_there_is_found() -> None:
    page = "hosts/library/gone.py, `diagnosis/sesion.py`, gone_file.py, `Sesion`, engine/formats/, `Session`"
    assert list(lost_paths(page)) == ["hosts/library/gone.py", "diagnosis/sesion.py", "gone_file.py"]
    assert list(lost_classes(page)) == ["Sesion"]
    assert list(lost_paths("the enumerations of `model/`, `render/`, an either/or")) == ["model/"]


def asking(name: str) -> set[str]:
    """The files outside of engine/arch that ask an architecture so."""
    call = re.compile(rf"architecture\.{name}\(")
    files = {path.relative_to(ROOT / "gdbext").as_posix(): path.read_text() for path in (ROOT / "gdbext").rglob("*.py")}
    return {path for path, text in files.items() if call.search(text) and not path.startswith("engine/arch/")}


def test_who_finds_return_addresses_on_the_stack_is_named() -> None:
    """On aarch64 they are in a register at first, so each of these places needs a word then."""
    places = asking("return_slot") | asking("return_address")
    assert "tools/breaks/break_set.py" in places
    assert [path for path in sorted(places) if path not in PAGE] == []
