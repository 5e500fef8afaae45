"""The file law: a path that a target named is opened by one door, engine/targets/foreign_files.py, and nowhere else.

No test can see whose path it is that a function is given. So every module that opens, lists or asks for a file by
itself is declared here, with the reason why nobody else can have named it. Files of the kernel whose names are written
out (``f"/proc/{pid}/maps"``) are everybody's, save those that are links to what a process chose.

A process also chooses how long its files of /proc are: they are read by engine/targets/system/proc_files.py, which
takes a limit, and nowhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from support.source.parsed import breaches, calls, nodes

pytestmark = pytest.mark.xdist_group("laws")

DOOR = "the door"
PROC = "files of /proc, of /sys and of control groups, by constants or by the caller's word"
DECLARED = {
    DOOR: ["engine/targets/foreign_files.py", "engine/targets/rooted_paths.py", "engine/targets/system/proc_files.py"],
    PROC: [
        *("engine/targets/live/proc_checks.py", "engine/targets/system/machine.py"),
        "engine/targets/system/surroundings.py",
    ],
    "other files of the kernel, by constants or by the caller's word; the status of what it names": [
        *("engine/targets/live/debugger_guard.py", "engine/targets/system/nvidia.py", "engine/targets/system/peers.py"),
        *("tools/ps/__init__.py", "tools/ranks/rank_processes.py"),
        "hosts/lldb/lldb_frames.py",
        *("engine/process/modules.py", "tools/probes/dispatch_tracer.py"),
    ],
    "files that the user names on his command line or in the debugger, and debuggers on his PATH": [
        *("hosts/gdb/gdb_commands.py", "engine/targets/core_target.py"),
        *("engine/formats/__init__.py", "hosts/cli/command_runner.py", "hosts/cli/options.py", "hosts/opening.py"),
        *("engine/formats/elf_core.py", "hosts/cli/options.py", "tools/known/__init__.py", "tools/info/__init__.py"),
        *("tools/shell/__init__.py", "hosts/debugger/command_shell.py", "engine/targets/core_sources.py"),
        *("hosts/cli/debugger_runner.py", "tools/ranks/rank_sources.py", "hosts/lldb/lldb_launch.py"),
    ],
    "the user's cache, whose owner is checked": ["engine/formats/symbol_cache.py", "cache.py"],
    "site folders and entries of the user, which must be ours or root's": [
        "engine/entry_points.py",
        "known/__init__.py",
    ],
    "what we write ourselves": [
        *("engine/formats/whole_file.py", "engine/formats/workplace.py", "hosts/debugger/batch_job.py"),
        *("hosts/debugger/recorded_command.py", "tools/core_handler/__init__.py"),
        *("tools/report/__init__.py", "hosts/pytest_plugin.py"),
    ],
    "our own program and data": [
        *("engine/layouts/__init__.py", "engine/layouts/store.py", "torch/registry/operator_names.py"),
        *(
            "torch/assumed_symbols.py",
            "torch/compile/dynamo_names.py",
            "tools/ranks/other_machines.py",
            "init.py",
            "lldb_init.py",
        ),
        "engine/terminal.py",
    ],
    "memory that it shares with the process that started it": [
        *("engine/targets/live/debugger_guard.py", "hosts/hang_board.py"),
    ],
    "a copy of PyTorch that measuring was allowed to use, and our own temporary folder": ["torch/measure/"],
    "what the door has opened": ["engine/targets/core_target.py"],
    "ElfImage.open, which the door does not use, and which is declared where it is used": ["engine/formats/elf.py"],
}
"""Why they may → modules, and folders with a slash; what does nothing of the kind must not be in the list."""

_OF_OS = ("open", "stat", "lstat", "readlink", "listdir", "scandir", "walk", "fwalk", "access", "statvfs")
_OF_PATHS = ("exists", "lexists", "isfile", "isdir", "islink", "ismount", "realpath", "getsize", "getmtime", "getctime")
FUNCTIONS = {
    "io": {"open", "FileIO"},
    "os": {*_OF_OS},
    "os.path": {*_OF_PATHS, "samefile"},
    "mmap": {"mmap"},
    "glob": {"glob", "iglob"},
    "linecache": {"getline", "getlines", "checkcache", "updatecache"},
    **{name: {"open"} for name in ("tokenize", "codecs", "gzip", "lzma")},
    "shutil": {"copyfile", "copy", "copy2", "copytree"},
    "runpy": {"run_path"},
    "proc_files": {"head", "read", "text"},
}
METHODS = {
    *("read_text", "read_bytes", "iterdir", "glob", "rglob", "is_file", "is_dir", "is_symlink", "is_fifo", "lstat"),
    "readlink",
}
"""Of pathlib.Path; other objects that have such a method are declared as well."""
METHODS_WITHOUT_ARGUMENTS = {"exists", "stat", "resolve"}
LINKS = ("/root", "/cwd", "/fd/", "/exe", "/map_files/")
"""Names in /proc/PID that lead to what the process chose."""
ASKING = {"os.readlink", "os.listdir", "os.path.samefile", "os.stat"}
"""What says something of such a link, or of the file at its end, and opens nothing."""
OPENERS = {"open", "io.open", "os.open", ".open", ".read_text", ".read_bytes"}
OWN = ("/proc/self/", "/proc/thread-self/", "/proc/sys/")
"""Files whose length this process or root chooses."""
MEMORY = ("/mem", "/pagemap")
"""Files that are read where and as far as the reader says."""
BY_A_VARIABLE = {("engine/targets/live/debugger_guard.py", "/proc/PID/PID")}
"""Those two, opened in a loop."""


def unbounded(file: str, source: str) -> Iterator[tuple[int, str]]:
    """Files of /proc that are opened elsewhere than in their reader. A module that reads files of /proc by the caller's
    word opens none itself."""
    is_told = file in DECLARED[PROC]
    for line, name, path in [] if file in DECLARED[DOOR] else _openings(source):
        is_theirs = path.startswith("/proc/") and not path.startswith(OWN) and _is_text(path)
        if ((is_told and not path) or is_theirs) and (file, path) not in BY_A_VARIABLE:
            yield line, f"{name} of a file of /proc, without a limit"


def _is_text(path: str) -> bool:
    return not path.endswith(MEMORY) and not any(link in f"{path}/" for link in (*LINKS, "/ns/"))


def _openings(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, name, path as far as it is written out) of each call that opens a file."""
    for call in calls(source):
        if (name := _name(call)) in OPENERS:
            where = call.func.value if name.startswith(".") and isinstance(call.func, ast.Attribute) else call
            first = where.args[0] if isinstance(where, ast.Call) and where.args else None
            yield call.lineno, name, _written(first) if first is not None else ""


def file_calls(_: str, source: str) -> Iterator[tuple[int, str]]:
    """Calls that open, list or ask for a file by its name."""
    for node in nodes(source):
        if isinstance(node, ast.Call):
            name = _name(node)
            if name and not _is_of_the_kernel(node, name):
                yield node.lineno, name
        elif isinstance(node, ast.ImportFrom):
            names = FUNCTIONS.get(node.module or "", set())
            yield from ((node.lineno, f"{node.module}.{each.name}") for each in node.names if each.name in names)


def _name(call: ast.Call) -> str:
    """What is called, "" where that touches no file."""
    function = call.func
    if isinstance(function, ast.Name):
        return "open" if function.id == "open" else ""
    if not isinstance(function, ast.Attribute):
        return ""
    owner, name = ast.unparse(function.value), function.attr
    if name in FUNCTIONS.get(owner, ()) or f"{owner}.{name}" == "ElfImage.open":
        return f"{owner}.{name}"
    if name in METHODS or (name in METHODS_WITHOUT_ARGUMENTS and not call.args):
        return f".{name}"
    mode = call.args[0] if call.args else None
    is_mode = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rwxabt+")
    return ".open" if name == "open" and (is_mode or not call.args) else ""


def _is_of_the_kernel(call: ast.Call, name: str) -> bool:
    """The path is written out, and is one of the kernel's own files."""
    text = _written(call.args[0]) if call.args else ""
    if not text.startswith(("/proc/", "/sys/", "/dev/null")):
        return False
    return name in ASKING or not any(link in text for link in LINKS)


def _written(node: ast.AST) -> str:
    """The text of a literal with PID in place of what is filled in; "" where the end of it is not written out."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "os.devnull":
        return "/dev/null"
    if not isinstance(node, ast.JoinedStr):
        return ""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "PID" for part in node.values)


def test_files_are_opened_by_the_door() -> None:
    assert breaches(file_calls, DECLARED) == []


def test_files_of_proc_are_read_with_a_limit() -> None:
    assert breaches(unbounded) == []
