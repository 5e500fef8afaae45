"""Subinterpreters, forked children, and Pythons that cannot be read."""

from __future__ import annotations

import sys

import pytest

from gdbext.cpython.sync.locks import read_gils
from gdbext.cpython.threads.runtime import PythonRuntime, read_thread_names
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import PythonUnsupported
from support.installed import pythons
from support.programs.harness import Inferior, ready
from support.programs.python_targets import look, view_of

pytestmark = [pytest.mark.gdb, pytest.mark.pythons]
PROGRAM = "python_interpreters"
"""Of tests/inferiors, for the fixtures of conftest.py."""


def test_both_interpreters(inferior: Inferior) -> None:
    with look(inferior) as view:
        both = [0, view.truth["number"]]
        assert sorted(each.id for each in view.runtime.interpreters()) == both
        tid = view.truth["tid"]
        assert sorted(state.interpreter.id for state in view.states[tid]) == both
        groups = view.groups(tid)
        placed = view.placed(tid)
        assert [group for _, group in placed] == groups
        if view.has_loop_names:
            assert [level for level, _ in placed] == view.loops(tid)
        functions = [frame.function.rpartition(".")[2] for group in groups for frame in group]
        assert functions == [*["inside"] * 4, "<module>", "run_in_interpreter", "run", "_bootstrap_inner", "_bootstrap"]
        names = read_thread_names(view.runtime)
        assert names[view.states[tid][0].ident] == "guest"
        assert sorted(names.values()) == ["MainThread", "forker", "guest"]
        if view.has_gil:
            gils = read_gils(view.runtime)
            assert gils[0].interpreter == 0
            assert sorted(number for gil in gils for number in gil.interpreters) == both
            assert len(gils) == (1 if view.minor < (3, 12) else 2)
            assert not any(gil.locked for gil in gils)


def test_forked_child(inferior: Inferior) -> None:
    """The child's only thread is a copy of the one that forked; what it knows of its native id may be stale."""
    child = inferior.truth["child"]
    with ProcTarget(child) as target:
        view = view_of(inferior.truth, target)
        assert list(view.states) == [child]
        groups = view.groups(child)
        assert groups[0][0].function == "fork_here"
        assert read_thread_names(view.runtime)[view.state(child).ident] == "forker"
        assert [group for _, group in view.placed(child)] == groups


WAITS = "os.write(1, b'\\n'); os.read(0, 1)"


@pytest.mark.parametrize("version", ["2.7", "3.7"])
def test_old_python_is_refused(version: str) -> None:
    with pytest.raises(PythonUnsupported) as caught:
        detect([pythons.need(version), "-c", f"import os; {WAITS}"])
    assert caught.value.help


def test_a_program_without_python_and_python_that_ends() -> None:
    """While the interpreter shuts down its structures go one by one; what is left is shown."""
    assert not detect(["sh", "-c", "echo; read line"])
    code = f"import builtins, os\nclass Last:\n    def __del__(self, os=os): {WAITS}\nbuiltins.last = Last()\n"
    assert detect([sys.executable, "-c", code]) == sys.version.split()[0]


def detect(command: list[str]) -> str:
    """The version of the Python of a program that has written something; "" if it is no Python."""
    with ready(command) as process, ProcTarget(process.pid) as target:
        memory = Memory(target)
        modules = ModuleTable(target, memory)
        runtime = PythonRuntime.detect(memory, modules, Symbolizer(modules))
        for state in runtime.thread_states():
            runtime.frames.stack(state)
        read_thread_names(runtime)
        return runtime.version
