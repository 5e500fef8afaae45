"""Real Pythons of every supported version to look at with gdbext.cpython, live and as cores, without a debugger."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from gdbext.cpython.threads.frame_reader import FrameGroup, ThreadState, place_groups
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.diagnosis.inspect import inspect_threads
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import briefly_stopped
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.unwind import Unwinder
from gdbext.engine.unwind.frame_steps import NativeFrame
from support.installed import pythons
from support.programs import procfs
from support.programs.harness import HarnessError, Inferior, interpreter, started, wait_until

if TYPE_CHECKING:
    from gdbext.cpython.abi import Version

PYTHONS = (*pythons.SUPPORTED, *pythons.newer(), "debian")
"""Minor versions from pyenv (with symbols), and Debian's stripped one."""


@dataclass
class View:
    truth: dict[str, Any]
    target: Target
    memory: Memory
    modules: ModuleTable
    symbolizer: Symbolizer
    runtime: PythonRuntime
    states: dict[int, list[ThreadState]] = field(default_factory=dict)

    @property
    def minor(self) -> Version:
        return self.runtime.layout.abi.version

    @property
    def has_gil(self) -> bool:
        return not self.runtime.layout.abi.free_threaded

    def groups(self, tid: int) -> list[FrameGroup]:
        return self.runtime.frames.groups(self.states[tid])

    def state(self, tid: int) -> ThreadState:
        return self.states[tid][0]

    def native(self, tid: int) -> list[NativeFrame]:
        thread = next(each for each in self.target.memory.threads() if each.tid == tid)
        return list(Unwinder(self.memory, self.modules).frames(thread.registers()))

    def placed(self, tid: int) -> list[tuple[int, FrameGroup]]:
        """(level of the native frame, Python frames that it evaluates)."""
        places = [(frame.sp, frame.cfa) for frame in self.native(tid)]
        return place_groups(self.groups(tid), places, self.loops(tid).__contains__)

    @property
    def has_loop_names(self) -> bool:
        """The evaluation loop has a name: it has not where the compiler split it and the file is stripped."""
        return bool(self.loops(self.target.pid))

    def loops(self, tid: int) -> list[int]:
        functions = [self.symbolizer.function(frame.lookup_pc) for frame in self.native(tid)]
        evaluates = self.runtime.layout.abi.evaluates
        return [level for level, function in enumerate(functions) if function and evaluates(function.names)]


def view_of(truth: dict[str, Any], target: Target) -> View:
    memory = Memory(target)
    modules = ModuleTable(target, memory)
    symbolizer = Symbolizer(modules)
    runtime = PythonRuntime.detect(memory, modules, symbolizer)
    assert runtime is not None, "no CPython found"
    return View(truth, target, memory, modules, symbolizer, runtime, runtime.threads_by_tid())


@contextlib.contextmanager
def running(python: str, name: str, *args: str) -> Iterator[Inferior]:
    """A program of tests/inferiors with all of its threads asleep. Skips where that Python is missing."""
    try:
        interpreter(python)
    except HarnessError as error:
        pytest.skip(str(error))
    # with many arenas gdb writes 64 MB of addresses for each of them into a core
    environment = {"MALLOC_ARENA_MAX": "1", "PYTHONUTF8": "1"}
    with started(name, *args, python=python, env=environment) as inferior:
        tids = set(procfs.threads(inferior.pid)) - {inferior.truth.get("wants_gil")}
        wait_until(
            lambda: all(procfs.syscall(inferior.pid, tid)[0].isdigit() for tid in tids), "all threads are blocked"
        )
        yield inferior


@contextlib.contextmanager
def look(inferior: Inferior, core: bool = False) -> Iterator[View]:
    target: Target = CoreTarget(str(inferior.core())) if core else ProcTarget(inferior.pid)
    with contextlib.closing(target):
        yield view_of(inferior.truth, target)


def brief_threads(pid: int) -> dict[int, ThreadReport]:
    """The threads by their ids, seen by a look that stops the process briefly; no error is met."""
    target = briefly_stopped(pid)
    session, found = Session(target).read_consistently(inspect_threads)
    target.close()
    assert [error.what for error in session.errors.reports()] == []
    return {thread.tid: thread for thread in found.threads}
