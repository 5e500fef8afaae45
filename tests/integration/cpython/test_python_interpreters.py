"""Subinterpreters, forked children, and Pythons that cannot be read."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gdbext.cpython.sync.locks import read_gils
from gdbext.cpython.threads.runtime import PythonRuntime, read_thread_names
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import PythonUnsupported
from support.installed import pythons
from support.programs.python_targets import PYTHONS, PythonInferior, view_of

pytestmark = [pytest.mark.gdb, pytest.mark.pythons]


@pytest.fixture(scope="module", params=PYTHONS)
def inferior(request: pytest.FixtureRequest) -> Iterator[PythonInferior]:
    process = PythonInferior(request.param, "python_interpreters")
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.truth["child"], signal.SIGKILL)
    process.close()


def test_frames_of_both_interpreters(inferior: PythonInferior) -> None:
    with inferior.look("live") as view:
        assert sorted(each.id for each in view.runtime.interpreters()) == [0, view.truth["number"]]
        tid = view.truth["tid"]
        states = view.states[tid]
        assert sorted(state.interpreter.id for state in states) == [0, view.truth["number"]]
        groups = view.groups(tid)
        placed = view.placed(tid)
        assert [group for _, group in placed] == groups
        if view.has_loop_names:
            assert [level for level, _ in placed] == view.loops(tid)
        names = [frame.function.rpartition(".")[2] for group in groups for frame in group]
        assert names == [*["inside"] * 4, "<module>", "run_in_interpreter", "run", "_bootstrap_inner", "_bootstrap"]


def test_a_thread_keeps_the_name_that_it_has_in_the_main_interpreter(inferior: PythonInferior) -> None:
    with inferior.look("live") as view:
        names = read_thread_names(view.runtime)
        guest = view.states[view.truth["tid"]][0].ident
        assert names[guest] == "guest"
        assert sorted(names.values()) == ["MainThread", "forker", "guest"]


def test_each_interpreter_has_its_gil(inferior: PythonInferior) -> None:
    with inferior.look("live") as view:
        if not view.has_gil:
            pytest.skip("a free-threaded build")
        gils = read_gils(view.runtime)
        assert gils[0].interpreter == 0
        users = sorted(number for gil in gils for number in gil.interpreters)
        assert users == [0, view.truth["number"]]
        assert len(gils) == (1 if view.minor < (3, 12) else 2)
        assert not any(gil.locked for gil in gils)


def test_forked_child(inferior: PythonInferior) -> None:
    """The child's only thread is a copy of the one that forked; what it knows of its native id may be stale."""
    child = inferior.truth["child"]
    with ProcTarget(child) as target:
        view = view_of(inferior.python, "live", inferior.truth, target)
        assert list(view.states) == [child]
        groups = view.groups(child)
        assert groups[0][0].function == "fork_here"
        assert read_thread_names(view.runtime)[view.state(child).ident] == "forker"
        assert [group for _, group in view.placed(child)] == groups


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_old_python_is_refused(version: str) -> None:
    with running([pythons.need(version), "-c", "import os; os.write(1, b'x'); os.read(0, 1)"]) as pid:
        with pytest.raises(PythonUnsupported) as caught:
            detect(pid)
        assert caught.value.help


def test_a_program_without_python() -> None:
    with running(["sh", "-c", "echo; read line"]) as pid:
        assert detect(pid) is None


def test_python_that_ends_is_still_read() -> None:
    """While the interpreter shuts down its structures go one by one; what is left is shown."""
    code = (
        "import os, atexit, weakref\n"
        "class Last:\n"
        "    def __del__(self, os=os):\n"
        "        os.write(1, b'x'); os.read(0, 1)\n"
        "import builtins; builtins.last = Last()\n"
    )
    with running([sys.executable, "-c", code]) as pid:
        runtime = detect(pid)
        assert runtime is not None
        assert runtime.version == sys.version.split()[0]


def detect(pid: int) -> PythonRuntime | None:
    with ProcTarget(pid) as target:
        memory = Memory(target)
        modules = ModuleTable(target, memory)
        runtime = PythonRuntime.detect(memory, modules, Symbolizer(modules))
        if runtime is not None:
            for state in runtime.thread_states():
                runtime.frames.stack(state)
            read_thread_names(runtime)
        return runtime


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[int]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.read(1)
        yield process.pid
    finally:
        process.kill()
        process.communicate()
