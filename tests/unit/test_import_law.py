"""The import law of docs/architecture.md: imports go down, nothing imports a tool but by its row, and debuggers are
imported in their own files only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source.package_imports import existing, imported, module_name

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

ROOT = Path(__file__).resolve().parents[2]

ORDER = (
    "engine.terminal",
    "log",
    "errors",
    "cache",
    "engine.record",
    "engine.entry_points",
    "engine.numbers",
    "engine.vocabulary",
    "engine.formats",
    "engine.arch",
    "engine.targets.system.peer",
    "engine.targets.system.proc_files",
    "engine.targets.rooted_paths",
    "engine.targets.foreign_files",
    "engine.targets.host_files",
    "engine.targets.base_target",
    "engine.targets",
    "engine.process",
    "engine.unwind",
    "engine.glibc",
    "engine.layouts",
    "cpython",
    "torch",
    "torch.measure",
    "render",
    "known",
    "diagnosis",
    "live",
    "tools",
    "hosts.debugger",
    "hosts.gdb",
    "hosts.lldb",
    "hosts.opening",
    "hosts.library",
    "hosts.cli",
    "hosts.py_spy",
    "hosts.debug_server",
    "hosts.mcp_server",
    "hosts.hang_watcher",
    "hosts.pytest_plugin",
)
"""Lowest first: a file imports from its own entry and those before it; the longest prefix that fits is its place."""
ROOF = {"__init__", "__main__", "init", "lldb_init", "log", "errors", "cache"}
"""The files that stand in no room."""
ENTRIES = ("", "init", "lldb_init", "__main__")
SHARED = {"table", "extras", "family", "program"}
"""Files beside the folders of the tools, which every tool may import."""
BASES = {"tensor", "probes"}
"""Tools that others are built on: other tools and, for C++ values that debuggers show, hosts may import them."""
ROWS = {"tools.table", "hosts.library.torch_view"}
"""Where tools are named. Whoever wants another one asks there; the library names the types of what they report."""
DEBUGGER_FILES = {
    "gdb": re.compile(r"hosts/gdb/\w+\.py|init\.py"),
    "lldb": re.compile(r"hosts/lldb/\w+\.py|lldb_init\.py"),
}


def breaches(package: Path) -> list[str]:
    """Every breach of the law in the package (a folder named gdbext), as "file:line: what"."""
    files = sorted(package.rglob("*.py"))
    modules = {module_name(file.relative_to(package)) for file in files}
    return [found for file in files for found in _breaches_of(file.relative_to(package), file.read_text(), modules)]


def _breaches_of(relative: Path, source: str, modules: set[str]) -> Iterator[str]:
    if len(relative.parts) == 1 and relative.stem not in ROOF:
        yield f"{relative}:1: stands in no room"
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
    """hosts/debugger/base_debugger.py imports a debugger's folder by name; nobody else does."""
    parts = name.split(".")
    if parts[:2] != ["gdbext", "hosts"] or parts[2:3] not in [[each] for each in DEBUGGER_FILES]:
        return ""
    allowed = DEBUGGER_FILES[parts[2]]
    return "" if allowed.fullmatch(relative.as_posix()) else f"imports the folder hosts/{parts[2]}"


def _order_breach(relative: Path, name: str, modules: set[str]) -> str:
    if name.split(".")[0] != "gdbext":
        return ""
    ours, theirs = module_name(relative), existing(name.partition(".")[2], modules)
    if ours in ENTRIES or not theirs or ours == theirs or (len(relative.parts) == 1 and relative.stem not in ROOF):
        return ""
    if _rank(ours) is None:
        return f"{ours} has no place in the law"
    if theirs in ENTRIES:
        return f"imports the entry {theirs}"
    if _is_hidden_tool(ours, theirs):
        return f"{ours} imports the tool {theirs}"
    if (_rank(theirs) or 0) > (_rank(ours) or 0):
        return f"{ours} imports {theirs}, which stands above it"
    return ""


def _is_hidden_tool(ours: str, theirs: str) -> bool:
    """``theirs`` is a tool's folder or a file in it, and ``ours`` is not of that tool, no base and no row."""
    tool = _tool(theirs)
    return bool(tool) and tool not in BASES | {_tool(ours)} and ours not in ROWS


def _tool(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "tools" and len(parts) > 1 and parts[1] not in SHARED else ""


def _room(module: str) -> str:
    """The entry of ORDER that the module belongs to: the longest one that fits."""
    fitting = [room for room in ORDER if module == room or module.startswith(room + ".")]
    return max(fitting, key=len) if fitting else module.split(".")[0]


def _rank(module: str) -> int | None:
    room = _room(module)
    return ORDER.index(room) if room in ORDER else None


def test_the_tree_keeps_the_law() -> None:
    assert breaches(ROOT / "gdbext") == []


def test_the_walk_sees_the_tree() -> None:
    seen = {module_name(file.relative_to(ROOT / "gdbext")) for file in (ROOT / "gdbext").rglob("*.py")}
    assert {"errors", "engine.targets.base_target"} <= seen


@pytest.mark.parametrize(
    ("planted", "source", "found"),
    [
        ("engine/process/memory.py", "from gdbext.torch.values import key_names", "stands above"),
        ("engine/process/memory.py", "from ...torch.values.key_names import KeyNames", "stands above"),
        ("engine/process/memory.py", "def late():\n    from gdbext.torch.values import key_names", "stands above"),
        ("errors.py", "import gdbext.engine.targets.base_target", "stands above"),
        ("cpython/runtime.py", "from gdbext.torch.values import key_names", "stands above"),
        ("render/style.py", "import gdb", "imports gdb"),
        ("render/style.py", "from gdbext.diagnosis.session import Session", "stands above"),
        ("render/style.py", "import importlib\nimportlib.import_module('gdb')", "imports gdb"),
        ("hosts/gdb/hooks.py", "import lldb", "imports lldb"),
        ("engine/targets/core_target.py", "import gdb.types", "imports gdb"),
        ("tools/trace/tracer.py", "import gdb", "imports gdb"),
        ("tools/trace/tracer.py", "from gdbext.tools import watch", "imports the tool"),
        ("tools/trace/tracer.py", "from gdbext.tools.watch.evidence import EvidenceFolder", "imports the tool"),
        ("tools/probes/top.py", "from gdbext.tools.trace.tracer import Tracer", "imports the tool"),
        ("tools/family.py", "from gdbext.tools.watch import WatchProgram", "imports the tool"),
        ("diagnosis/bt.py", "def run():\n    from gdbext.tools.trace import TraceTool", "imports the tool"),
        ("diagnosis/bt.py", "from gdbext.tools.tensor.contents import Contents", "stands above"),
        ("hosts/cli/launcher.py", "from gdbext.tools.watch import WatchProgram", "imports the tool"),
        ("tools/table.py", "import gdbext.init", "the entry"),
        ("live/host.py", "import gdbext.tools.table", "stands above"),
        ("engine/targets/base_target.py", "from gdbext.engine.process.memory import Memory", "stands above"),
        ("engine/targets/base_target.py", "from gdbext.engine.targets.core_target import CoreTarget", "stands above"),
        ("engine/targets/core_target.py", "from gdbext.engine.process.memory import Memory", "stands above"),
        ("engine/layouts/store.py", "from gdbext.torch.measure.generate import make", "stands above"),
        ("unheard_of.py", "", "no room"),
        ("unheard_of/file.py", "from gdbext import errors", "no place"),
        ("diagnosis/bt.py", "from gdbext.hosts.cli import launcher", "stands above"),
        ("tools/trace/tracer.py", "from gdbext.hosts.gdb.gdb_target import GdbTarget", "the folder hosts/gdb"),
        ("tools/trace/tracer.py", "from gdbext.hosts.debugger import base_debugger", "stands above"),
        ("hosts/debugger/base_debugger.py", "from gdbext.hosts.gdb.gdb_target import Gdb", "the folder hosts/gdb"),
        ("hosts/debugger/base_debugger.py", "from gdbext.hosts import gdb", "the folder hosts/gdb"),
        ("hosts/lldb/lldb_target.py", "from gdbext.hosts.gdb import gdb_target", "the folder hosts/gdb"),
        ("hosts/cli/launcher.py", "import gdbext.hosts.gdb.gdb_target", "the folder hosts/gdb"),
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
        ("init.py", "import gdb\nfrom gdbext.tools import table"),
        ("lldb_init.py", "import lldb"),
        ("hosts/gdb/gdb_target.py", "import gdb\nfrom gdbext.engine.targets.base_target import Target"),
        ("hosts/gdb/gdb_commands.py", "import gdb\nfrom gdbext.tools import table"),
        ("hosts/gdb/gdb_printers.py", "import gdb\nfrom gdbext.tools.tensor.contents import Contents"),
        ("tools/trace/tracer.py", "from gdbext.tools.tensor.contents import Contents\nimport gdbext.live.host"),
        ("tools/table.py", "from gdbext.tools.trace.tracer import Tracer"),
        ("diagnosis/bt.py", "from . import session\nfrom gdbext.render.style import Style"),
        ("engine/targets/core_target.py", "from gdbext.engine.targets.base_target import Target"),
        ("torch/measure/generate.py", "from gdbext.engine.layouts.store import load"),
        ("torch/values/key_names.py", "from gdbext.errors import BadData\nimport struct"),
    ],
)
def test_what_the_law_allows(tmp_path: Path, file: str, source: str) -> None:
    assert breaches(_small_package(tmp_path, file, source)) == []


def _small_package(folder: Path, planted: str, source: str) -> Path:
    package = folder / "gdbext"
    for name in (
        "errors",
        "engine/targets/base_target",
        "engine/targets/core_target",
        "hosts/gdb/gdb_target",
        "hosts/gdb/__init__",
        "hosts/debugger/base_debugger",
        "engine/process/memory",
        "engine/layouts/store",
        "torch/measure/generate",
        "torch/values/key_names",
        "cpython/runtime",
        "diagnosis/session",
        "render/style",
        "tools/trace/tracer",
        "tools/tensor/contents",
        "tools/table",
        "diagnosis/bt",
        "tools/trace/__init__",
        "tools/watch/__init__",
        "tools/watch/evidence",
        "tools/family",
        "hosts/cli/launcher",
        "live/host",
        "init",
        "lldb_init",
    ):
        file = package / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (package / planted).parent.mkdir(parents=True, exist_ok=True)
    (package / planted).write_text(source + "\n")
    return package
