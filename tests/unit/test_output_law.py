"""The output law: files are made by one door (whole_file.py and workplace.py in engine/formats), and what is written
for people passes another one (engine/terminal.py). What does either by itself is declared here, with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from support.source.parsed import breaches, calls

pytestmark = pytest.mark.xdist_group("laws")

DOOR = "the door"
MAKERS = {
    DOOR: ["engine/formats/whole_file.py", "engine/formats/workplace.py"],
    "the user's cache, which nobody else can change (cache.py)": [
        "engine/formats/symbol_cache.py",
        "hosts/cli/debugger_runner.py",
    ],
    "the user's cache, and a temporary folder of our own, mode 0700": ["torch/measure/"],
    "a file without a name, in a folder for temporary files; one in memory": ["engine/targets/core_sources.py"],
    "its own folder of crashes, which nobody else can write to": ["tools/core_handler/__init__.py"],
    "a temporary folder of our own, mode 0700, where the user names none that can be written": [
        *("tools/watch/evidence.py", "tools/timeout/__init__.py", "hosts/hanging_tests.py")
    ],
    "a descriptor that the launcher handed over": ["hosts/debugger/batch_job.py"],
    "/proc/self/comm": ["engine/targets/system/linux.py"],
}
"""Why they may make files → modules, and folders with a slash."""
WRITERS = {
    DOOR: ["engine/terminal.py", "tools/watch/__init__.py", "tools/timeout/__init__.py"],
    "escapes what it names": ["torch/measure/", "tools/tensor/tensor_tool.py"],
    "a screen: each line has passed the door": ["tools/probes/top_view.py"],
    "a file": ["engine/formats/whole_file.py", "engine/targets/core_sources.py"],
    "pipes between processes and threads of our own": [
        *("engine/targets/live/supervision.py", "hosts/pytest_plugin.py", "live/host.py"),
        *("tools/ranks/slurm.py", "tools/ranks/other_machines.py", "tools/ranks/rank_sources.py"),
    ],
    "the connection to LLDB's server": ["engine/targets/live/debugger_guard.py"],
}
"""The same for what writes to a descriptor or a stream."""

MAKING = {
    *(f"os.{name}" for name in ("mkdir", "makedirs", "rename", "replace", "link", "symlink", "mkfifo")),
    *(f"shutil.{name}" for name in ("copy", "copyfile", "move", "copytree")),
    *(f"tempfile.{name}" for name in ("mkdtemp", "mkstemp")),
    *(f"tempfile.{name}" for name in ("TemporaryDirectory", "TemporaryFile", "NamedTemporaryFile")),
}
MAKING_METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "mkdir"}
WRITING = {
    *("print", "os.write", "os.writev", "sys.stdout.write", "sys.stderr.write"),
    *("sys.stdout.buffer.writelines", "sys.stdout.buffer.write", "sys.stderr.buffer.write"),
}


def made_files(_: str, source: str) -> Iterator[tuple[int, str]]:
    """Calls that can make a file or a folder, or cut one short."""
    return ((call.lineno, ast.unparse(call.func)) for call in calls(source) if _makes_file(call))


def _makes_file(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name in MAKING:
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr in MAKING_METHODS:
        return not name.startswith("whole_file.")
    if name == "os.open":
        return any(flag in ast.unparse(call) for flag in ("O_CREAT", "O_TRUNC", "_NEW"))
    mode = _mode(call) if name == "open" or name.endswith(".open") else ""
    return bool(set(mode) & set("wax+"))


def _mode(call: ast.Call) -> str:
    words = (*call.args[:2], *(word.value for word in call.keywords if word.arg == "mode"))
    found = [each.value for each in words if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return next((each for each in found if each and set(each) <= set("rwxabt+")), "")


def written(_: str, source: str) -> Iterator[tuple[int, str]]:
    """Calls that write to a terminal, as far as a name can tell."""
    return ((call.lineno, ast.unparse(call.func)) for call in calls(source) if ast.unparse(call.func) in WRITING)


def test_files_are_made_by_the_door() -> None:
    assert breaches(made_files, MAKERS) == []


def test_what_people_read_passes_the_door() -> None:
    assert breaches(written, WRITERS) == []
