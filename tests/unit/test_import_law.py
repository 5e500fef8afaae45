"""The import law of docs/architecture.md: imports point one way, and debuggers are imported in their own files only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_imports import existing, imported, module_name

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

ROOT = Path(__file__).resolve().parents[2]

ORDER = (
    ("log",),
    ("garbage",),
    ("errors",),
    ("cache",),
    ("model",),
    ("formats",),
    ("arch",),
    ("targets.host_files",),
    ("targets.base",),
    ("targets",),
    ("process",),
    ("unwind",),
    ("glibc",),
    ("layouts",),
    ("layouts.measure",),
    ("cpython",),
    ("torch",),
    ("waits",),
    ("verdict",),
    ("jobs",),
    ("inspection",),
    ("live",),
    ("probes",),
    ("render",),
    ("commands",),
    ("debuggers",),
    ("debuggers.gdb",),
    ("debuggers.lldb",),
    ("cli",),
)
"""Lowest first: a file imports from its own entry and those before it; the longest prefix that fits is its place."""

DEBUGGER_FILES = {
    "gdb": re.compile(r"debuggers/gdb/\w+\.py|init\.py"),
    "lldb": re.compile(r"debuggers/lldb/\w+\.py|lldb_init\.py"),
}
ENTRIES = ("init", "lldb_init", "__main__")
SHARED_BY_COMMANDS = {"registry", "options", "recorded", "reporting"}
"""Modules of commands/ that are no commands."""


def breaches(package: Path) -> list[str]:
    """Every breach of the law in the package (a folder named gdbext), as "file:line: what"."""
    files = sorted(package.rglob("*.py"))
    modules = {module_name(file.relative_to(package)) for file in files}
    return [found for file in files for found in _breaches_of(file.relative_to(package), file.read_text(), modules)]


def _breaches_of(relative: Path, source: str, modules: set[str]) -> Iterator[str]:
    for line, name in imported(relative, source):
        why = _debugger_breach(relative, name) or _folder_breach(relative, name)
        why = why or _order_breach(relative, name, modules)
        if why:
            yield f"{relative}:{line}: {why}"


def _debugger_breach(relative: Path, name: str) -> str:
    debugger = name.split(".")[0]
    allowed = DEBUGGER_FILES.get(debugger)
    if allowed is None or allowed.fullmatch(relative.as_posix()):
        return ""
    return f"imports {debugger}, which only its own target, live and entry files may"


def _folder_breach(relative: Path, name: str) -> str:
    """debuggers/table.py imports a debugger's folder by name; whoever else does makes two places know of it."""
    parts = name.split(".")
    if parts[:2] != ["gdbext", "debuggers"] or parts[2:3] not in [[each] for each in DEBUGGER_FILES]:
        return ""
    allowed = DEBUGGER_FILES[parts[2]]
    return "" if allowed.fullmatch(relative.as_posix()) else f"imports the folder debuggers/{parts[2]}"


def _order_breach(relative: Path, name: str, modules: set[str]) -> str:
    if name.split(".")[0] != "gdbext":
        return ""
    ours, theirs = module_name(relative), existing(name.partition(".")[2], modules)
    if ours in ENTRIES or not theirs or ours == theirs:
        return ""
    if _rank(ours) is None:
        return f"{ours} has no place in the law"
    if theirs in ENTRIES:
        return f"imports the entry {theirs}"
    if _is_command(ours) and _is_command(theirs):
        return f"the command {ours} imports another command, {theirs}"
    if (_rank(theirs) or 0) > (_rank(ours) or 0):
        return f"{ours} imports {theirs}, which stands above it"
    if _room(ours) != _room(theirs) and _rank(ours) == _rank(theirs):
        return f"{ours} imports {theirs}, which stands beside it"
    return ""


def _is_command(module: str) -> bool:
    parts = module.split(".")
    return parts[0] == "commands" and len(parts) > 1 and parts[1] not in SHARED_BY_COMMANDS


def _room(module: str) -> str:
    """The entry of ORDER that the module belongs to: the longest one that fits."""
    fitting = [room for rooms in ORDER for room in rooms if module == room or module.startswith(room + ".")]
    return max(fitting, key=len) if fitting else module.split(".")[0]


def _rank(module: str) -> int | None:
    room = _room(module)
    return next((rank for rank, rooms in enumerate(ORDER) if room in rooms), None)


def test_the_tree_keeps_the_law() -> None:
    assert breaches(ROOT / "gdbext") == []


def test_the_walk_sees_the_tree() -> None:
    seen = {module_name(file.relative_to(ROOT / "gdbext")) for file in (ROOT / "gdbext").rglob("*.py")}
    assert {"errors", "targets.base"} <= seen


@pytest.mark.parametrize(
    ("planted", "source", "found"),
    [
        ("process/memory.py", "from gdbext.torch.values import key_names", "stands above"),
        ("process/memory.py", "from ..torch.values.key_names import KeyNames", "stands above"),
        ("process/memory.py", "def late():\n    from gdbext.torch.values import key_names", "stands above"),
        ("errors.py", "import gdbext.targets.base", "stands above"),
        ("cpython/runtime.py", "from gdbext.torch.values import key_names", "stands above"),
        ("render/text.py", "import gdb", "imports gdb"),
        ("render/text.py", "import importlib\nimportlib.import_module('gdb')", "imports gdb"),
        ("debuggers/gdb/hooks.py", "import lldb", "imports lldb"),
        ("targets/core_target.py", "import gdb.types", "imports gdb"),
        ("live/trace.py", "import gdb", "imports gdb"),
        ("commands/bt.py", "from gdbext.commands import info", "another command"),
        ("commands/bt.py", "from .info import run", "another command"),
        ("commands/registry.py", "import gdbext.init", "the entry"),
        ("live/trace.py", "import gdbext.commands.bt", "stands above"),
        ("targets/base.py", "from gdbext.process.memory import Memory", "stands above"),
        ("targets/base.py", "from gdbext.targets.core_target import CoreTarget", "stands above"),
        ("targets/core_target.py", "from gdbext.process.memory import Memory", "stands above"),
        ("layouts/store.py", "from gdbext.layouts.measure.generate import make", "stands above"),
        ("unheard_of.py", "from gdbext import errors", "no place"),
        ("commands/bt.py", "from gdbext.cli import launcher", "stands above"),
        ("live/trace.py", "from gdbext.debuggers.gdb.target import GdbTarget", "the folder debuggers/gdb"),
        ("live/trace.py", "from gdbext.debuggers import table", "stands above"),
        ("debuggers/table.py", "from gdbext.debuggers.gdb.target import GdbTarget", "the folder debuggers/gdb"),
        ("debuggers/table.py", "from gdbext.debuggers import gdb", "the folder debuggers/gdb"),
        ("debuggers/lldb/target.py", "from gdbext.debuggers.gdb import target", "the folder debuggers/gdb"),
        ("cli/launcher.py", "import gdbext.debuggers.gdb.target", "the folder debuggers/gdb"),
    ],
)
def test_a_planted_breach_is_found(tmp_path: Path, planted: str, source: str, found: str) -> None:
    package = _small_package(tmp_path, planted, source)
    reports = breaches(package)
    assert len(reports) == 1, reports
    assert reports[0].startswith(planted)
    assert found in reports[0]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("init.py", "import gdb\nfrom gdbext.commands import registry, bt"),
        ("lldb_init.py", "import lldb"),
        ("debuggers/gdb/target.py", "import gdb\nfrom gdbext.targets.base import Target"),
        ("debuggers/gdb/commands.py", "import gdb\nfrom gdbext.commands import registry, bt"),
        ("commands/bt.py", "from . import registry\nfrom gdbext.inspection.session import Session"),
        ("targets/core_target.py", "from gdbext.targets.base import Target"),
        ("layouts/measure/generate.py", "from gdbext.layouts.store import load"),
        ("torch/values/key_names.py", "from gdbext.errors import BadData\nimport struct"),
    ],
)
def test_what_the_law_allows(tmp_path: Path, file: str, source: str) -> None:
    assert breaches(_small_package(tmp_path, file, source)) == []


def _small_package(folder: Path, planted: str, source: str) -> Path:
    package = folder / "gdbext"
    for name in (
        "errors", "targets/base", "targets/core_target", "debuggers/gdb/target", "debuggers/table", "process/memory",
        "layouts/store",
        "layouts/measure/generate", "torch/values/key_names", "cpython/runtime", "verdict/graph", "inspection/session",
        "model/report", "render/text", "live/trace", "commands/registry", "commands/bt", "commands/info",
        "cli/launcher", "init", "lldb_init",
    ):  # fmt: skip
        file = package / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (package / planted).parent.mkdir(exist_ok=True)
    (package / planted).write_text(source + "\n")
    return package
