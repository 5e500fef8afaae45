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

import pytest

ROOT = Path(__file__).resolve().parents[3]
RECORDING = ROOT / "tests" / "recordings" / "meta-mm.rec"
DEBUGGERS = ("hosts.gdb", "hosts.lldb", "init", "lldb_init", "hosts.debug_server")
"""What only the Python of a debugger, or one with PyTorch, can import."""
CHECK = """
import importlib, json, sys
sys.path.append(sys.argv[1])
for name in json.loads(sys.argv[2]):
    importlib.import_module(name)
from gdbext.hosts.cli import launcher
from gdbext.tools import table
helps = [table.help_text(row) for row in table.TABLE]
assert all(row.name in text for row, text in zip(table.TABLE, helps))
sys.exit(launcher.main(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package: one for all tools, so that Python compiles it once."""
    package = tmp_path_factory.mktemp("copy") / "gdbext"
    shutil.copytree(ROOT / "gdbext", package, ignore=shutil.ignore_patterns("__pycache__"))
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
        node for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ToolRow" and _is_of(node, tool)
    ]  # fmt: skip
    assert rows
    lines = source.splitlines(keepends=True)
    for row in reversed(rows):
        del lines[row.lineno - 1 : row.end_lineno]
    table.write_text("".join(lines))


def _is_of(row: ast.Call, tool: str) -> bool:
    place = re.compile(rf"gdbext\.tools\.{tool}[.:]")
    return any(isinstance(each, ast.Constant) and place.match(str(each.value)) for each in row.args)


def run(package: Path, modules: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", CHECK, str(package.parent), json.dumps(modules), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def modules(package: Path) -> list[str]:
    found = [".".join(file.relative_to(package).with_suffix("").parts) for file in sorted(package.rglob("*.py"))]
    kept = [name for name in found if not name.startswith(DEBUGGERS) and not name.endswith("__main__")]
    return [f"gdbext.{name.removesuffix('.__init__')}" for name in kept if name != "__init__"]


@pytest.mark.parametrize("tool", ["autograd", "values", "collectives"])
def test_the_rest_works_without_a_tool(tool: str, whole: Path, tmp_path: Path) -> None:
    expected = run(whole, [], "-r", str(RECORDING), "dispatch-diagnose", "--json")
    with without(tool, whole, tmp_path):
        done = run(whole, modules(whole), "-r", str(RECORDING), "dispatch-diagnose", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == json.loads(expected.stdout)
        for words in (["dispatch-bt"], ["dispatch-bt", "--values"], ["dispatch-info"]):
            done = run(whole, [], "-r", str(RECORDING), *words)
            assert done.returncode == 0, done.stderr
        listed = run(whole, [], "--help").stdout
        assert "dispatch-diagnose" in listed
        assert f"dispatch-{tool} " not in listed
        assert run(whole, [], "-r", str(RECORDING), f"dispatch-{tool}").returncode == 2
