"""The argv law: in a command line that we build, a word that somebody else may have chosen stands behind ``--``, behind
the name of its option (``--jobs=…``), or has passed ``argument`` (engine/formats), which refuses what begins with a
dash. The same for environments: what is put into one has passed ``environment_value`` (engine/terminal.py). Programs
whose other words are nobody else's are declared here, with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from support.source.parsed import breaches, calls, nodes, sources

pytestmark = pytest.mark.xdist_group("laws")

_OF_OS = (
    *("posix_spawn", "posix_spawnp", "execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp", "execlpe"),
    *("spawnv", "spawnve", "spawnvp", "spawnl", "spawnlp", "system", "popen"),
)
STARTING = {
    *(f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")),
    *("subprocess.getoutput", "subprocess.getstatusoutput"),
    *(f"os.{name}" for name in _OF_OS),
    *("pty.spawn", "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
}
DECLARED = {
    "made by the debugger's launcher; a program and its words are the user's": ["hosts/cli/debugger_runner.py"],
    "our own program: the pid of this process; _word and launcher_words refuse options (test_mcp_words.py)": [
        "hosts/__init__.py"
    ],
    "our own module: numbers, and the folder that the user names": ["hosts/pytest_plugin.py"],
    "the command line of the user": ["tools/watch/__init__.py", "tools/timeout/__init__.py"],
    "gcore gets the number of a process": ["tools/watch/evidence.py"],
    "options of the user; names of pods have passed argument()": ["tools/ranks/other_machines.py"],
    "our own module: a JSON document": ["torch/measure/measurement.py"],
    "compilers on our own files; folders stand behind -I": ["torch/measure/compiler.py"],
    "one function that starts what two others build of checked words": ["tools/ranks/slurm.py"],
}
"""Why the words of what they start are no stranger's → modules, and folders with a slash."""
ENVIRONMENTS = {
    "environment_value, paths that the user names, and a number": ["tools/watch/__init__.py"],
    "folders of our own, constants, and environment_value": ["torch/measure/"],
    "a constant": ["hosts/__init__.py", "hosts/cli/command_runner.py"],
    "a folder of our own": ["tools/core_handler/__init__.py"],
}
"""The same for what is put into an environment: it is one line of text."""


def unsafe_starts(_: str, source: str) -> Iterator[tuple[int, str]]:
    """Programs that are started with words that may be options, as far as is written out there."""
    for call in calls(source):
        name = ast.unparse(call.func)
        if name in STARTING:
            at = 1 if name.startswith(("os.posix_spawn", "os.exec", "os.spawn")) else 0
            if len(call.args) <= at or not all(_is_safe_list(each) for each in _lists(call.args[at], source)):
                yield call.lineno, ast.unparse(call)


def _lists(words: ast.expr, source: str) -> list[ast.expr]:
    if isinstance(words, ast.Call) and ast.unparse(words.func) in ("program_command", "list"):
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


def changed_environments(_: str, source: str) -> Iterator[tuple[int, str]]:
    """What puts something into an environment."""
    setters = ("os.putenv", "os.environ.update", "os.environ.setdefault", "os.environb.update")
    for node in nodes(source):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in setters or (name in STARTING and any(word.arg == "env" for word in node.keywords)):
                yield node.lineno, name
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith(("os.environ[", "os.environb[")):
            yield node.lineno, ast.unparse(node)


def test_foreign_words_are_no_options() -> None:
    assert breaches(unsafe_starts, DECLARED) == []


def test_what_is_put_into_environments_is_declared() -> None:
    assert breaches(changed_environments, ENVIRONMENTS) == []


def test_commands_of_slurm_have_checked_words_only() -> None:
    """Where a list is built apart from its start, all that is handed to the starter is looked at."""
    started = [call for call in calls(sources()["tools/ranks/slurm.py"]) if ast.unparse(call.func) == "_output"]
    assert [_is_safe_list(call.args[0]) for call in started] == [True, True]
