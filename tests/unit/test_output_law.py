"""The output law: files are made by one door (whole_file.py and workplace.py in engine/formats), and what is written
for people passes another one (engine/terminal.py). What does either by itself is declared here, with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source.parsed import nodes

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

PACKAGE = Path(__file__).resolve().parents[2] / "gdbext"

DOOR = "the door"
CACHE = "the user's cache, which nobody else can change (cache.py)"
MAKERS = {
    "engine/formats/whole_file.py": DOOR,
    "engine/formats/workplace.py": DOOR,
    "engine/formats/symbol_cache.py": CACHE,
    "hosts/cli/debugger_runner.py": CACHE,
    "torch/measure/": "the user's cache, and a temporary folder of our own, mode 0700",
    "tools/watch/evidence.py": "a temporary folder of our own, mode 0700, where the user names none",
    "engine/targets/core_sources.py": "a file without a name, in a folder for temporary files; one in memory",
    "tools/core_handler/__init__.py": "its own folder of crashes, which nobody else can write to",
    "tools/timeout/__init__.py": "a temporary folder of our own, mode 0700, where the user names none",
    "hosts/hang_watcher.py": "a temporary folder of our own, mode 0700, where the one that is named cannot be written",
    "hosts/debugger/batch_job.py": "a descriptor that the launcher handed over",
    "engine/targets/system/linux.py": "/proc/self/comm",
}
"""Module, or folder with a slash → why it may make files."""
WRITERS = {
    "torch/measure/": "escapes what it names, and draws one line again and again",
    "tools/probes/top_view.py": "a screen: each line has passed the door",
    "tools/trace/trace_output.py": "lines go to a file",
    "engine/terminal.py": DOOR,
    "engine/targets/live/supervision.py": "a pipe between our own processes",
    "engine/targets/core_sources.py": "a file in memory",
    "tools/watch/__init__.py": DOOR,
    "tools/timeout/__init__.py": DOOR,
    "engine/targets/live/debugger_guard.py": "the connection to LLDB's server",
    "live/end_requests.py": "a pipe to a thread of our own",
    "hosts/pytest_plugin.py": "a pipe between our own processes",
    "tools/ranks/slurm.py": "a document for another machine of ours",
    "tools/ranks/other_machines.py": "what a program of ours reads, through a pipe",
    "tools/ranks/collector.py": "pipes between our own processes",
    "tools/tensor/tensor_tool.py": "escapes what it names",
    "engine/formats/whole_file.py": "a file",
}
"""The same for what writes to a descriptor or a stream."""

MAKING = {
    "os.mkdir",
    "os.makedirs",
    "os.rename",
    "os.replace",
    "os.link",
    "os.symlink",
    "os.mkfifo",
    "shutil.copy",
    "shutil.copyfile",
    "shutil.move",
    "shutil.copytree",
    "tempfile.mkdtemp",
    "tempfile.mkstemp",
    "tempfile.TemporaryDirectory",
    "tempfile.TemporaryFile",
    "tempfile.NamedTemporaryFile",
}
MAKING_METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "mkdir"}
WRITING = {
    "print",
    "os.write",
    "os.writev",
    "sys.stdout.write",
    "sys.stderr.write",
    "sys.stdout.buffer.writelines",
    "sys.stdout.buffer.write",
    "sys.stderr.buffer.write",
}


def makes_file(call: ast.Call) -> bool:
    """The call can make a file or a folder, or cut one short."""
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


def writes(call: ast.Call) -> bool:
    """The call writes to a terminal, as far as a name can tell."""
    return ast.unparse(call.func) in WRITING


def breaches(package: Path, declared: dict[str, str], touches: object) -> list[str]:
    """Every breach, as "file:line: what", and each row that nobody needs."""
    assert callable(touches)
    found, needed = [], set()
    for file in sorted(package.rglob("*.py")):
        relative = file.relative_to(package).as_posix()
        calls = [each for each in _calls(file.read_text()) if touches(each)]
        rows = {name for name in declared if name == relative or (name.endswith("/") and relative.startswith(name))}
        needed |= rows if calls else set()
        found += [] if rows else [f"{relative}:{each.lineno}: {ast.unparse(each.func)}" for each in calls]
    return found + [f"{name}: must not be declared" for name in sorted(declared.keys() - needed)]


def _calls(source: str) -> Iterator[ast.Call]:
    return (node for node in nodes(source) if isinstance(node, ast.Call))


def test_files_are_made_by_the_door() -> None:
    assert breaches(PACKAGE, MAKERS, makes_file) == []


def test_what_people_read_passes_the_door() -> None:
    assert breaches(PACKAGE, WRITERS, writes) == []


@pytest.mark.parametrize(
    ("line", "is_breach"),
    [
        ("open(path, 'w')", True),
        ("open(path, mode='ab')", True),
        ("path.open('x')", True),
        ("open(path)", False),
        ("open(path, 'rb')", False),
        ("os.open(p, os.O_WRONLY | os.O_CREAT)", True),
        ("os.open(p, os.O_RDONLY)", False),
        ("Path(p).write_text(x)", True),
        ("os.replace(a, b)", True),
        ("whole_file.write_text(p, x)", False),
        ("tempfile.mkdtemp()", True),
    ],
)
def test_planted_breaches_of_the_first(tmp_path: Path, line: str, is_breach: bool) -> None:
    (tmp_path / "x.py").write_text(f"{line}\n")
    assert bool(breaches(tmp_path, {}, makes_file)) is is_breach


@pytest.mark.parametrize(
    ("line", "is_breach"),
    [("print(x)", True), ("os.write(2, x)", True), ("sys.stderr.write(x)", True), ("f(x)", False)],
)
def test_planted_breaches_of_the_second(tmp_path: Path, line: str, is_breach: bool) -> None:
    (tmp_path / "x.py").write_text(f"{line}\n")
    assert bool(breaches(tmp_path, {}, writes)) is is_breach
