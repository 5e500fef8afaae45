"""Versions of CPython are compared in cpython/abi only, and the rows there agree with the layouts that are shipped."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gdbext.cpython.abi.versions import SUPPORTED, abi_of_hexversion
from gdbext.errors import PythonUnsupported
from support.source.parsed import nodes, walk

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

PACKAGE = Path(__file__).resolve().parents[4] / "gdbext"
ALLOWED = ("cpython/abi/", "engine/formats/", "engine/layouts/")
"""Where versions may be compared: the rows themselves; formats and layouts have version numbers of their own."""
VERSION_NAMES = {"version", "minor", "hexversion", "version_info", "py_version"}


def comparisons(source: str) -> list[str]:
    """Each comparison of versions, and each literal (3, 11)."""
    found = []
    for node in nodes(source):
        if isinstance(node, ast.Tuple) and re.fullmatch(r"\(3, ([5-9]|\d\d)\)", ast.unparse(node)):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Compare) and not all(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
            operands = [each for operand in (node.left, *node.comparators) for each in walk(operand)]
            names = {getattr(each, "id", getattr(each, "attr", "")) for each in operands}
            found += [ast.unparse(node)] * bool(names & VERSION_NAMES)
    return found


def test_versions_are_compared_in_one_room() -> None:
    files = {file.relative_to(PACKAGE).as_posix(): file for file in sorted(PACKAGE.rglob("*.py"))}
    found = {name: comparisons(file.read_text()) for name, file in files.items() if not name.startswith(ALLOWED)}
    assert {name: where for name, where in found.items() if where} == {}
    assert comparisons("NEW = (3, 12); new = layout.version < OLDEST; x = abi.version is None") == [
        "(3, 12)",
        "layout.version < OLDEST",
    ]


def test_a_row_is_found_by_its_version() -> None:
    versions = [(abi.version, abi.free_threaded) for abi in SUPPORTED]
    assert versions == sorted(set(versions))
    assert [abi_of_hexversion(number).text for number in (0x030907F0, 0x030B07F0)] == ["3.9", "3.11"]
    with pytest.raises(PythonUnsupported, match=r"CPython 3\.7\.9 is not supported"):
        abi_of_hexversion(0x030709F0)
    with pytest.raises(PythonUnsupported, match=r"free-threaded CPython 3\.11\.7") as caught:
        abi_of_hexversion(0x030B07F0, free_threaded=True)
    assert caught.value.why.endswith("every version; 3.8 to 3.15, 3.13t and 3.14t are supported")
