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
USERS = "files that the user names on his command line, or in the debugger"
OURS = "our own program and data"
CACHE = "the user's cache, whose owner is checked"
OUTPUT = "what we write ourselves"
MEASURING = "a copy of PyTorch that measuring was allowed to use, and our own temporary folder"
DECLARED = {
    "hosts/gdb/gdb_commands.py": USERS,
    "engine/targets/foreign_files.py": DOOR,
    "engine/targets/rooted_paths.py": DOOR,
    "engine/targets/host_files.py": "files of /proc, by the caller's word: what a target names has methods of its own",
    "engine/targets/core_target.py": USERS,
    "engine/targets/mapped_files.py": "maps what the door has opened",
    "engine/targets/recording/container.py": USERS,
    "engine/targets/system/proc_files.py": DOOR,
    "engine/targets/live/proc_checks.py": "files of /proc, by constants; the machine of /proc/PID/exe",
    "engine/targets/live/debugger_guard.py": "memory that it shares with the process that started it",
    "engine/targets/live/kernel_probes.py": "tracefs, by constants; of files that the kernel names, the status",
    "engine/targets/live/thread_motion.py": "files of /proc and /sys, by the caller's word",
    "engine/targets/system/machine.py": "files of /proc, and of control groups where our own mountinfo has them",
    "engine/targets/system/nvidia.py": "the log of the kernel, by a constant",
    "engine/targets/system/surroundings.py": "files of /proc and /sys, and of control groups where mountinfo has them",
    "engine/targets/system/peers.py": "folders of /proc, by the caller's word",
    "engine/entry_points.py": "site folders of our own Python; what is used of them must be ours or root's",
    "known/__init__.py": "our own entries, and the user's, which are data and must be ours or root's",
    "engine/process/modules.py": "asks the kernel for the file behind /proc/PID/exe; nothing is opened",
    "engine/formats/elf.py": "ElfImage.open, which the door does not use, and which is declared where it is used",
    "engine/formats/__init__.py": USERS,
    "hosts/cli/launcher.py": USERS,
    "hosts/opening.py": "the program that the user names, and the status of /proc/PID/exe",
    "hosts/cli/typed_forms.py": USERS,
    "engine/formats/elf_core.py": USERS,
    "engine/formats/symbol_cache.py": CACHE,
    "engine/formats/whole_file.py": OUTPUT,
    "engine/formats/workplace.py": OUTPUT,
    "cache.py": CACHE,
    "engine/layouts/__init__.py": OURS,
    "engine/layouts/store.py": OURS,
    "torch/registry/operator_names.py": OURS,
    "torch/compile/dynamo_names.py": OURS,
    "torch/measure/": MEASURING,
    "engine/terminal.py": "our own program on the user's PATH",
    "hosts/cli/options.py": USERS,
    "hosts/cli/debugger_runner.py": "the program that the user starts, to see how the kernel would",
    "tools/known/__init__.py": USERS,
    "tools/info/__init__.py": USERS,
    "tools/shell/__init__.py": USERS,
    "tools/ranks/other_machines.py": OURS,
    "tools/ps/__init__.py": "the folder /proc itself, by a constant",
    "tools/ranks/rank_processes.py": "the folder /proc itself, by a constant",
    "tools/ranks/rank_sources.py": "reports that the user names",
    "hosts/debugger/command_shell.py": USERS,
    "hosts/debugger/batch_job.py": OUTPUT,
    "hosts/debugger/recorded_command.py": OUTPUT,
    "hosts/lldb/lldb_launch.py": "debuggers on the user's PATH",
    "hosts/lldb/lldb_frames.py": "/proc/thread-self/comm",
    "engine/targets/core_sources.py": USERS,
    "tools/core_handler/__init__.py": OUTPUT,
    "tools/core_handler/crash_user.py": "a link in /proc, and the table of lent uids, by constants",
    "tools/core_handler/disk_room.py": OUTPUT,
    "tools/report/__init__.py": "a bundle in memory",
    "hosts/hang_watcher.py": "memory that it shares with the process that started it",
    "hosts/pytest_plugin.py": "our own program, and what its watcher wrote into the user's folder",
    "__main__.py": OURS,
    "init.py": OURS,
    "lldb_init.py": OURS,
    "tools/probes/bpf/bpf_kernel.py": "files of /sys, by constants",
    "tools/probes/bpf/trace_program.py": "maps the ring that the kernel fills",
    "tools/probes/bpf/probe_keeper.py": "files of /sys, by constants",
}
"""Module, or folder with a slash → why it may; what does nothing of the kind must not be in the list."""

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
    is_told = "files of /proc" in DECLARED.get(file, "")
    for line, name, path in [] if DECLARED.get(file) == DOOR else _openings(source):
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


@pytest.mark.parametrize(
    ("source", "file", "is_breach"),
    [
        ("open(f'/proc/{pid}/environ', 'rb')", "", True),
        ("os.open(f'/proc/{pid}/maps', os.O_RDONLY)", "", True),
        ("Path(f'/proc/{pid}/cmdline').open()", "", True),
        ("open(path)", "engine/targets/host_files.py", True),
        ("open(path)", "", False),
        ("os.open(f'/proc/{pid}/mem', os.O_RDWR)", "", False),
        ("open('/proc/self/maps') or open(f'/proc/{pid}/exe', 'rb')", "", False),
        ("proc_files.read(f'/proc/{pid}/environ')", "", False),
    ],
)
def test_planted_readers_without_a_limit(source: str, file: str, is_breach: bool) -> None:
    assert bool(list(unbounded(file, source))) is is_breach


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "proc_files.head(f'/proc/{pid}/root{path}', 5)",
        "open(f'/proc/{pid}/cwd/x')",
        "os.stat(f'{folder}/proc/1/stat')",
        "os.path.realpath(path)",
        "Path(path).read_text()",
        "(folder / 'version.py').exists()",
        "path.open('rb')",
        "folder.glob('*.py')",
        "ElfImage.open(path)",
        "from os.path import exists",
    ],
)
def test_a_planted_breach_is_found(source: str) -> None:
    assert len(list(file_calls("", source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "open('/proc/locks') or open(f'/proc/{pid}/task/{tid}/stat', 'rb')",
        "os.readlink(f'/proc/{pid}/cwd')",
        "files.open(path, limit) or session.resolve(a) or reader.exists(owner)",
        "os.path.join(a, names.stat)",
    ],
)
def test_what_is_no_breach(source: str) -> None:
    assert list(file_calls("", source)) == []


def test_a_declaration_without_need_is_a_breach() -> None:
    assert breaches(lambda *_: (), {"errors.py": "declared", "gone.py": "declared"}) == [
        "errors.py: must not be declared",
        "gone.py: must not be declared",
    ]
