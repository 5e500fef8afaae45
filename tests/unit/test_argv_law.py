"""The argv law: in a command line that we build, a word that somebody else may have chosen stands behind ``--``, behind
the name of its option (``--jobs=…``), or has passed ``argument`` (engine/formats), which refuses what begins with a
dash. The same for environments: what is put into one has passed ``environment_value`` (engine/terminal.py). Programs
whose other words are nobody else's are declared here, with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source.parsed import nodes

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

PACKAGE = Path(__file__).resolve().parents[2] / "gdbext"

STARTING = {
    "subprocess.run",
    "subprocess.Popen",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "os.posix_spawn",
    "os.posix_spawnp",
    "os.execv",
    "os.execve",
    "os.execvp",
    "os.execvpe",
    "os.execl",
    "os.execle",
    "os.execlp",
    "os.execlpe",
    "os.spawnv",
    "os.spawnve",
    "os.spawnvp",
    "os.spawnl",
    "os.spawnlp",
    "os.system",
    "os.popen",
    "pty.spawn",
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
}
USERS = "the command line of the user"
DECLARED = {
    "hosts/cli/debugger_runner.py": "made by the debugger's launcher; a program and its words are the user's",
    "hosts/debug_server.py": "our own program: the pid of this process",
    "hosts/mcp_server.py": "our own program: _word and launcher_words refuse options (test_mcp_words.py)",
    "hosts/pytest_plugin.py": "our own module: numbers, and the folder that the user names",
    "tools/watch/__init__.py": USERS,
    "tools/watch/evidence.py": "gcore gets the number of a process",
    "tools/timeout/__init__.py": USERS,
    "tools/ranks/other_machines.py": "options of the user; names of pods have passed argument()",
    "torch/measure/child.py": "our own module: a JSON document",
    "torch/measure/compiler.py": "compilers on our own files; folders stand behind -I",
    "tools/ranks/slurm.py": "one function that starts what two others build of checked words",
}
"""Module → why the words of what it starts are no stranger's."""
ENVIRONMENTS = {
    "tools/watch/__init__.py": "environment_value, paths that the user names, and a number",
    "torch/measure/": "folders of our own, constants, and environment_value",
    "hosts/mcp_server.py": "a constant",
    "hosts/cli/launcher.py": "a constant",
    "tools/core_handler/__init__.py": "a folder of our own",
}
"""Module, or folder with a slash → why what it puts into an environment is one line of text."""


def starts(call: ast.Call) -> bool:
    """The call starts a program."""
    return ast.unparse(call.func) in STARTING


def is_safe(call: ast.Call, source: str) -> bool:
    """Each word is ours, is checked, or cannot be an option, as far as is written out where the program is started."""
    at = 1 if ast.unparse(call.func).startswith(("os.posix_spawn", "os.exec", "os.spawn")) else 0
    return len(call.args) > at and all(_is_safe_list(each) for each in _lists(call.args[at], source))


def _lists(words: ast.expr, source: str) -> list[ast.expr]:
    if isinstance(words, ast.Call) and ast.unparse(words.func) in ("located", "list"):
        return _lists(words.args[0], source)
    if not isinstance(words, ast.Name):
        return [words]
    made: list[ast.expr] = []
    for node in nodes(source):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", words)]
        if isinstance(node, (ast.Assign, ast.AugAssign)) and words.id in map(ast.unparse, targets):
            is_more = isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List)
            made.append(ast.List([ast.Constant(""), *node.value.elts]) if is_more else node.value)
    return made or [words]


def _is_safe_list(words: ast.expr) -> bool:
    if not isinstance(words, ast.List):
        return False
    for word in words.elts[1:]:
        if isinstance(word, ast.Constant) and word.value == "--":
            return True
        is_behind_option = isinstance(word, ast.JoinedStr) and ast.unparse(word)[2:].startswith("-")
        is_checked = isinstance(word, ast.Call) and ast.unparse(word.func) == "argument"
        if not (isinstance(word, ast.Constant) or is_behind_option or is_checked):
            return False
    return True


def changes_environment(node: ast.AST) -> bool:
    """It puts something into an environment."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if name in ("os.putenv", "os.environ.update", "os.environ.setdefault", "os.environb.update"):
            return True
        return any(word.arg == "env" for word in node.keywords) and starts(node)
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(ast.unparse(each).startswith(("os.environ[", "os.environb[")) for each in targets)


def breaches(declared: dict[str, str], sources: Iterator[tuple[str, list[ast.AST]]]) -> list[str]:
    """Every breach, as "file:line: what", and each row that nobody needs."""
    found, needed = [], set()
    for relative, wrong in sources:
        rows = {name for name in declared if name == relative or (name.endswith("/") and relative.startswith(name))}
        needed |= rows if wrong else set()
        found += [] if rows else [f"{relative}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}" for node in wrong]
    return found + [f"{name}: must not be declared" for name in sorted(declared.keys() - needed)]


def _unsafe_starts(package: Path) -> Iterator[tuple[str, list[ast.AST]]]:
    for file in sorted(package.rglob("*.py")):
        source = file.read_text()
        yield (
            file.relative_to(package).as_posix(),
            [
                node
                for node in nodes(source)
                if isinstance(node, ast.Call) and starts(node) and not is_safe(node, source)
            ],
        )


def _changed_environments(package: Path) -> Iterator[tuple[str, list[ast.AST]]]:
    for file in sorted(package.rglob("*.py")):
        yield (
            file.relative_to(package).as_posix(),
            [node for node in nodes(file.read_text()) if changes_environment(node)],
        )


def test_foreign_words_are_no_options() -> None:
    assert breaches(DECLARED, _unsafe_starts(PACKAGE)) == []


def test_what_is_put_into_environments_is_declared() -> None:
    assert breaches(ENVIRONMENTS, _changed_environments(PACKAGE)) == []


def test_commands_of_slurm_have_checked_words_only() -> None:
    """Where a list is built apart from its start, all that is handed to the starter is looked at."""
    source = (PACKAGE / "tools/ranks/slurm.py").read_text()
    calls = [node for node in nodes(source) if isinstance(node, ast.Call) and ast.unparse(node.func) == "_output"]
    assert len(calls) == 2
    assert all(_is_safe_list(call.args[0]) for call in calls)


@pytest.mark.parametrize(
    ("line", "is_breach"),
    [
        ("subprocess.run(['x', name])", True),
        ("subprocess.run(['x', '--', name])", False),
        ("subprocess.run(['x', f'--name={name}'])", False),
        ("subprocess.run(['x', f'{name}'])", True),
        ("subprocess.run(['x', argument(name)])", False),
        ("subprocess.run(located(['x', *names]))", True),
        ("words = ['x', '-a']\nwords += [name]\nos.posix_spawn(p, words, e)", True),
        ("words = ['x', '-a', '--', name]\nsubprocess.Popen(words)", False),
        ("os.system(f'ls {name}')", True),
        ("subprocess.run(words)", True),
        ("f(['x', name])", False),
    ],
)
def test_planted_breaches(tmp_path: Path, line: str, is_breach: bool) -> None:
    (tmp_path / "x.py").write_text(f"{line}\n")
    assert bool(breaches({}, _unsafe_starts(tmp_path))) is is_breach


@pytest.mark.parametrize(
    "line", ["os.environ['X'] = y", "os.environ.update(x)", "subprocess.run(['x'], env=e)", "os.putenv('x', y)"]
)
def test_planted_environments(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.py").write_text(f"{line}\n")
    assert breaches({}, _changed_environments(tmp_path))
