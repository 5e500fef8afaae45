"""Deleting a tool is its folder and its row: everything else of the package goes on working without it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
RECORDING = ROOT / "tests" / "recordings" / "meta-mm.rec"
DEBUGGERS = ("hosts.gdb", "hosts.lldb", "init", "lldb_init", "hosts.debug_server")
"""What only the Python of a debugger, or one with PyTorch, can import."""
CHECK = """
import importlib, json, os, sys
sys.path.append(sys.argv[1])
for name in json.loads(sys.argv[2]):
    importlib.import_module(name)
from gdbext.hosts.cli import launcher
from gdbext.tools import table
helps = [table.help_text(row) for row in table.TABLE]
assert all(row.name in text for row, text in zip(table.TABLE, helps))
for words in json.loads(sys.argv[3]):
    status = launcher.main(words)
    sys.stdout.flush()
    os.write(1, b"\\0%d\\0" % status)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, with what Python has compiled of it: one for all tools."""
    package = tmp_path_factory.mktemp("copy") / "gdbext"
    shutil.copytree(ROOT / "gdbext", package)
    return package


@contextmanager
def without(tool: str, package: Path, aside: Path) -> Iterator[None]:
    """Take the tool's folder, and the rows whose class is in it, out of the package."""
    folder, table = package / "tools" / tool, package / "tools" / "table.py"
    source = table.read_text()
    folder.rename(aside / tool)
    _write_without_rows(tool, table, source)
    try:
        yield
    finally:
        table.write_text(source)
        (aside / tool).rename(folder)


def _write_without_rows(tool: str, table: Path, source: str) -> None:
    rows = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ToolRow" and _is_of(node, tool)
    ]
    assert rows
    lines = source.splitlines(keepends=True)
    for row in reversed(rows):
        del lines[row.lineno - 1 : row.end_lineno]
    table.write_text("".join(lines))


def _is_of(row: ast.Call, tool: str) -> bool:
    place = re.compile(rf"gdbext\.tools\.{tool}[.:]")
    return any(isinstance(each, ast.Constant) and place.match(str(each.value)) for each in row.args)


def run(package: Path, modules: list[str], *lines: str) -> list[tuple[int, str]]:
    """The status and the text of each command line about the recording, all in one process that imports the modules."""
    commands = [["-r", str(RECORDING), *line.split()] for line in lines]
    command = [sys.executable, "-I", "-c", CHECK, str(package.parent), json.dumps(modules), json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    texts, statuses = done.stdout.split("\0")[:-1:2], done.stdout.split("\0")[1::2]
    assert len(statuses) == len(lines), done.stderr
    return list(zip(map(int, statuses), texts))


def modules(package: Path) -> list[str]:
    found = [".".join(file.relative_to(package).with_suffix("").parts) for file in sorted(package.rglob("*.py"))]
    kept = [name for name in found if not name.startswith(DEBUGGERS) and not name.endswith("__main__")]
    return [f"gdbext.{name.removesuffix('.__init__')}" for name in kept if name != "__init__"]


@pytest.fixture(scope="module")
def expected(whole: Path) -> dict[str, Any]:
    """The report with all tools."""
    ((_, text),) = run(whole, [], "dispatch-diagnose --json")
    report: dict[str, Any] = json.loads(text)
    return report


@pytest.mark.parametrize("tool", ["autograd", "values", "collectives"])
def test_the_rest_works_without_a_tool(tool: str, whole: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    lines = ("dispatch-diagnose --json", "dispatch-bt", "dispatch-bt --values", "dispatch-info", "--help")
    with without(tool, whole, tmp_path):
        done = run(whole, modules(whole), *lines, f"dispatch-{tool}")
    assert [status for status, _ in done] == [0] * len(lines) + [2]
    assert json.loads(done[0][1]) == expected
    listed = done[len(lines) - 1][1]
    assert "dispatch-diagnose" in listed
    assert f"dispatch-{tool} " not in listed
