"""Real Pythons of every supported version to look at with gdbext.cpython, live and as cores, without a debugger."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gdbext.cpython.threads.frame_reader import FrameGroup, ThreadState, place_groups
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.diagnosis.inspection import inspect_threads
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import brief_look
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
from support.programs.harness import INFERIORS, HarnessError, interpreter, take_core, wait_until

if TYPE_CHECKING:
    from gdbext.cpython.abi import Version

PYTHONS = (*pythons.SUPPORTED, *pythons.newer(), "debian")
"""Minor versions from pyenv (with symbols), and Debian's stripped one."""


@dataclass
class View:
    """One look at one Python."""

    python: str
    kind: str
    truth: dict[str, Any]
    target: Target
    memory: Memory
    modules: ModuleTable
    symbolizer: Symbolizer
    runtime: PythonRuntime
    states: dict[int, list[ThreadState]] = field(default_factory=dict)

    @property
    def minor(self) -> Version:
        """The minor version, as the tests compare it."""
        return self.runtime.layout.abi.version

    @property
    def has_gil(self) -> bool:
        """It is no free-threaded build."""
        return not self.runtime.layout.abi.free_threaded

    def groups(self, tid: int) -> list[FrameGroup]:
        """The Python frames of a thread by evaluation loop, innermost first."""
        return self.runtime.frames.groups(self.states[tid])

    def state(self, tid: int) -> ThreadState:
        """The thread state of a kernel thread."""
        return self.states[tid][0]

    def native(self, tid: int) -> list[NativeFrame]:
        """The native stack of a thread."""
        thread = next(each for each in self.target.threads() if each.tid == tid)
        return list(Unwinder(self.memory, self.modules).frames(thread.registers()))

    def placed(self, tid: int) -> list[tuple[int, FrameGroup]]:
        """(level of the native frame, Python frames that it evaluates)."""
        native = self.native(tid)
        return place_groups(
            self.groups(tid), [(frame.sp, frame.cfa) for frame in native], lambda level: self.is_loop(native[level])
        )

    @property
    def has_loop_names(self) -> bool:
        """The evaluation loop has a name: it has not where the compiler split it and the file is stripped."""
        return bool(self.loops(self.target.pid))

    def loops(self, tid: int) -> list[int]:
        """Levels of the native frames that evaluate Python code, by their names."""
        return [level for level, frame in enumerate(self.native(tid)) if self.is_loop(frame)]

    def is_loop(self, frame: NativeFrame) -> bool:
        """Whether a native frame is the evaluation loop (or its cold part)."""
        function = self.symbolizer.function(frame.lookup_pc)
        names = function.names if function else ()
        return self.runtime.layout.abi.evaluates(names)


def view_of(python: str, kind: str, truth: dict[str, Any], target: Target) -> View:
    """Everything above a target."""
    memory = Memory(target)
    modules = ModuleTable(target, memory)
    symbolizer = Symbolizer(modules)
    runtime = PythonRuntime.detect(memory, modules, symbolizer)
    assert runtime is not None, "no CPython found"
    return View(python, kind, truth, target, memory, modules, symbolizer, runtime, runtime.threads_by_tid())


_SMALL_CORES = {"MALLOC_ARENA_MAX": "1"}
"""Else a program with many threads reserves 64 MB of addresses for each of 16 arenas, and gdb writes all of it."""


class PythonInferior:
    """A running tests/inferiors/NAME.py, and its core when somebody asks for it."""

    def __init__(self, python: str, name: str, *args: str) -> None:
        self.python = python
        self.folder = Path(tempfile.mkdtemp(prefix=f"gdbext-{name}-"))
        truth = self.folder / "truth.json"
        try:
            path, _ = interpreter(python)
        except HarnessError as error:
            shutil.rmtree(self.folder)
            pytest.skip(str(error))
        command = [path, "-X", "utf8", str(INFERIORS / f"{name}.py"), str(truth), *args]
        environment = {**os.environ, **_SMALL_CORES}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        if ready != b"ready\n":
            self.close()
            raise HarnessError(f"{python} {name} did not get ready: {ready!r}")
        self.truth: dict[str, Any] = json.loads(truth.read_text(encoding="utf-8"))
        wait_until(self._asleep, "all threads are blocked")

    def _asleep(self) -> bool:
        """No thread is on its way into its wait any more; ``awake`` ones of the truth never are."""
        pid = self.process.pid
        tids = set(procfs.threads(pid)) - {self.truth.get("wants_gil")}
        return all(procfs.syscall(pid, tid)[0].isdigit() for tid in tids)

    @contextlib.contextmanager
    def look(self, kind: str) -> Iterator[View]:
        """The process itself ("live"), stopped meanwhile, or its core ("core")."""
        target: Target = ProcTarget(self.process.pid) if kind == "live" else CoreTarget(str(self.core()))
        try:
            yield view_of(self.python, kind, self.truth, target)
        finally:
            target.close()

    def core(self) -> Path:
        """Its core, as gcore makes it."""
        path = self.folder / "core"
        if self.python in pythons.NEWER:  # glibc 2.42 has guard pages without a mapping of their own
            pytest.skip("gdb's gcore leaves out what follows the guard pages of this Python's C library")
        if not path.exists():
            take_core(self.process.pid, path)
        return path

    def close(self) -> None:
        """End it and remove its files."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def telling(version: str, name: str, *words: str) -> Iterator[tuple[int, Any]]:
    """A running tests/inferiors/NAME.py: its pid, and the JSON that it printed first."""
    command = [pythons.need(version), str(INFERIORS / f"{name}.py"), *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, json.loads(process.stdout.readline())
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def brief_threads(pid: int) -> dict[int, ThreadReport]:
    """The threads by their ids, seen by a look that stops the process briefly; no error is met."""
    target = brief_look(pid)
    session, found = Session(target).settled(inspect_threads)
    target.close()
    assert [error.what for error in session.errors.reports()] == []
    return {thread.tid: thread for thread in found.threads}
