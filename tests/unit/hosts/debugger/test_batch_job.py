"""A job of scripts/dispatch: which debugger is started, how it travels, and that the process is always let go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdbext.engine.vocabulary import DEBUGGERS
from gdbext.errors import TargetError
from gdbext.hosts.debugger import base_debugger, batch_job
from gdbext.hosts.debugger.base_debugger import DebuggerLaunch, Job
from gdbext.tools.outcome import Outcome
from support.fakes.fake_debugger import FakeDebugger


def result(debugger: FakeDebugger, monkeypatch: pytest.MonkeyPatch, command: str, *argv: str) -> Outcome:
    ours, theirs = os.pipe()
    monkeypatch.setattr(base_debugger, "debugger", lambda _: debugger)
    batch_job.run("fake", Job(command, list(argv), result=theirs, pid=1))
    outcome = Outcome.decode(os.read(ours, 1 << 16))
    os.close(ours)
    return outcome


@pytest.mark.parametrize(
    ("words", "status", "opened"),
    [
        ("dispatch-info --json", 0, ["open dispatch-info, live=False"]),
        ("dispatch-info", 1, ["open dispatch-info, live=False"]),
        ("dispatch-break call mm", 1, ["open dispatch-break, live=True"]),
        ("dispatch-info --bogus", 2, []),  # wrong usage does not attach
    ],
)
def test_the_process_always_goes(words: str, status: int, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    debugger = FakeDebugger(process=status != 1)
    outcome = result(debugger, monkeypatch, *words.split())
    assert (outcome.status, outcome.output[:1]) == (status, "" if status else "{")
    assert ("there is no process" in outcome.error) is (status == 1)
    assert debugger.log == [*opened, f"let go of {words.split()[0]}, runs on=False"]


@pytest.mark.parametrize("core", ["", "/tmp/strange name\n'\"\\ü"])
def test_a_job_survives_a_command_line(core: str) -> None:
    job = Job("dispatch-op", ["*mm*", "a'b\nc"], result=5, output=6, core=core, sysroot="ä", color=True)
    text = job.expression()
    assert text.isascii()
    assert "\n" not in text
    again = eval(text, {"Job": Job})
    assert again == job


@pytest.mark.parametrize("name", DEBUGGERS)
def test_each_debugger_can_be_launched(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launch = base_debugger.launch(name)
    assert isinstance(launch, DebuggerLaunch)
    assert launch.name == name
    assert Path(base_debugger.__file__).parents[2].joinpath(DEBUGGERS[name].file).exists()
    monkeypatch.delenv(name.upper(), raising=False)
    with pytest.raises(TargetError, match=f"{name} was not found"):
        launch.find()
    executable = tmp_path / name
    executable.touch(0o755)
    monkeypatch.setenv(name.upper(), str(executable))
    assert launch.find() == str(executable)
    words = launch.arguments("CODE", "", ["program", "--option"], True)
    assert any("CODE" in word for word in words)
    assert words[-2:] == ["program", "--option"]
    assert any("CODE" in word for word in launch.arguments("CODE", str(tmp_path / "core"), [], False))


@pytest.mark.parametrize("compiled", [True, False])
def test_a_package_that_is_compiled_is_not_compiled_again(compiled: bool, tmp_path: Path) -> None:
    """The debugger's own cache of compiled files is for what has none."""
    package, cache = tmp_path / "gdbext" / "hosts" / "debugger", tmp_path / "cache"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    (package / "batch_job.py").write_text("class Job:\n    def __init__(*_, **__): pass\ndef run(*_): pass\n")
    if compiled:
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(tmp_path)], check=True, env={})
    code = base_debugger.job_code("gdb", Job("dispatch-info", [], result=1, pid=1), str(tmp_path))
    environment = {"PYTHONPYCACHEPREFIX": str(cache)}
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env=environment, cwd=tmp_path)
    assert bool(list(cache.rglob("batch_job*.pyc"))) is not compiled


LLDB = base_debugger.launch("lldb")


def test_the_plain_name_comes_first_and_then_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLDB", raising=False)
    in_a = ("a/lldb-9", "a/lldb-19", "a/lldb-server-22", "a/lldb-dap-22")
    for name in (*in_a, "b/lldb-20", "b/lldb-16", "c/lldb-16", "c/lldb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/none:{tmp_path}/b")
    assert LLDB.find() == f"{tmp_path}/b/lldb-20"
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/c")
    assert LLDB.find() == f"{tmp_path}/c/lldb"


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("error: there is no embedded script interpreter in this mode.\n", ""),
        ("error: Embedded script interpreter unavailable.\n", "this lldb has no embedded Python"),
        ("ModuleNotFoundError: No module named 'lldb.embedded_interpreter'\n", "cannot load LLDB's own module"),
        ("ImportError: cannot import name '_lldb' from partially\n", "cannot load LLDB's own module"),
        ("ModuleNotFoundError: No module named 'pygments'\n", ""),
    ],
)
def test_what_its_output_says_of_itself(output: str, what: str) -> None:
    failure = LLDB.known_failure(output)
    assert (failure is None) == (not what)
    if failure is not None:
        assert what in failure.what
        assert "--debugger none" in failure.help
        assert "apt-get install" in failure.help


def test_what_it_repeats_is_not_what_it_says() -> None:
    assert LLDB.relevant_output("(lldb) script import sys\n\nerror: attach failed\n") == "error: attach failed"
