"""Versions of CPython are compared in cpython/abi only, and the rows there agree with the layouts that are shipped."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext.cpython.abi import InterpreterFrames, LoopAnchor, PythonAbi
from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.abi.versions import SUPPORTED, abi_of_hexversion
from gdbext.engine.layouts.declarations import Member
from gdbext.errors import PythonUnsupported
from support.source.parsed import nodes, walk

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

PACKAGE = Path(__file__).resolve().parents[4] / "gdbext"
ALLOWED = ("cpython/abi/", "engine/formats/", "engine/layouts/")
"""Where versions may be compared: the rows themselves; formats and layouts have version numbers of their own."""
VERSION_NAMES = {"version", "minor", "hexversion", "version_info", "py_version"}


def comparisons(package: Path) -> list[str]:
    """Every comparison of versions outside of the rooms that may make one, as "file:line: what"."""
    found = []
    for file in sorted(package.rglob("*.py")):
        relative = file.relative_to(package).as_posix()
        if not relative.startswith(ALLOWED):
            found += [f"{relative}:{line}: {what}" for line, what in _comparisons_of(file.read_text())]
    return found


def _comparisons_of(source: str) -> Iterator[tuple[int, str]]:
    for node in nodes(source):
        if isinstance(node, ast.Tuple) and _is_python_version(node):
            yield node.lineno, f"the version {ast.unparse(node)}"
        elif isinstance(node, ast.Compare):
            names = {each for operand in (node.left, *node.comparators) for each in _names(operand)}
            if names & VERSION_NAMES and not _is_none_test(node):
                yield node.lineno, f"the comparison {ast.unparse(node)}"


def _is_python_version(node: ast.Tuple) -> bool:
    """A literal (3, 11)."""
    numbers = [each.value for each in node.elts if isinstance(each, ast.Constant) and type(each.value) is int]
    return len(numbers) == len(node.elts) == 2 and numbers[0] == 3 and numbers[1] >= 5


def _names(node: ast.AST) -> Iterator[str]:
    for each in walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr


def _is_none_test(node: ast.Compare) -> bool:
    return all(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops)


def test_versions_are_compared_in_one_room() -> None:
    assert comparisons(PACKAGE) == []


@pytest.mark.parametrize(
    "breach",
    [
        "if runtime.minor >= (3, 11): pass",
        "NEW = (3, 12)",
        "new = layout.version < OLDEST",
        "if sys.version_info[1] > 9: pass",
        "ok = hexversion >> 16 & 0xFF == 11",
        "if runtime.layout.abi.version == other: pass",
    ],
)
def test_a_planted_comparison_is_found(tmp_path: Path, breach: str) -> None:
    for place, expected in (("cpython/objects", 1), ("waits", 1), ("cpython/abi", 0)):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "planted.py").write_text(f"def planted():\n    {breach}\n")
        found = comparisons(tmp_path)
        assert bool(found) == bool(expected), place
        assert all(each.startswith(f"{place}/planted.py:2:") for each in found)
        (folder / "planted.py").unlink()


def test_questions_for_members_are_no_comparisons(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text(
        "if layout.find(PyThreadState.cframe) is None: pass\n"
        "if layout.abi.gil is GilPlace.RUNTIME: pass\n"
        "if version is None: pass\n"
        "shape = torch.ones(3, 2), (3, 2)\n"
    )
    assert comparisons(tmp_path) == []


def test_rows_are_in_order_and_distinct() -> None:
    versions = [(abi.version, abi.free_threaded) for abi in SUPPORTED]
    assert versions == sorted(set(versions))


def test_a_row_is_found_by_its_version() -> None:
    assert [abi_of_hexversion(number).text for number in (0x030907F0, 0x030B07F0)] == ["3.9", "3.11"]
    with pytest.raises(PythonUnsupported, match=r"CPython 3\.7\.9 is not supported"):
        abi_of_hexversion(0x030709F0)
    with pytest.raises(PythonUnsupported, match=r"free-threaded CPython 3\.11\.7") as caught:
        abi_of_hexversion(0x030B07F0, free_threaded=True)
    assert caught.value.why.endswith("every version; 3.8 to 3.15, and 3.13t and 3.14t, are known")


@pytest.mark.parametrize("abi", SUPPORTED, ids=lambda abi: abi.text)
def test_members_that_a_row_names_are_in_its_layout(abi: PythonAbi) -> None:
    layout = layout_for(abi)
    members: list[Member[int]] = [abi.first_thread, abi.modules, abi.code_name, *abi.local_names]
    members += [lock.word for lock in abi.lock_types]
    if isinstance(abi.frames, InterpreterFrames):
        members += [abi.frames.code, abi.frames.instruction]
    assert [member for member in members if layout.find(member) is None] == []


@pytest.mark.parametrize("abi", SUPPORTED, ids=lambda abi: abi.text)
def test_owners_of_frames_are_those_of_the_headers(abi: PythonAbi) -> None:
    table = layout_for(abi).table
    assert ("_frameowner" in table.absent) == (not isinstance(abi.frames, InterpreterFrames))
    if not isinstance(abi.frames, InterpreterFrames):
        return
    owners = table.enum("_frameowner")
    assert abi.frames.generator_owner == owners["FRAME_OWNED_BY_GENERATOR"]
    codeless = {value for name, value in owners.items() if name.endswith(("_CSTACK", "_INTERPRETER"))}
    assert set(abi.frames.codeless_owners) == codeless
    by_entry = abi.frames.anchor is LoopAnchor.ENTRY_FRAME
    assert abi.frames.entry_owner == (min(codeless) if by_entry else None)
