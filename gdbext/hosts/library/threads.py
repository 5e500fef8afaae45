"""Threads as the library shows them, each with its whole stack if asked for, and the variables of Python frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

from gdbext.cpython.abi.versions import unsupported
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.object_text import describe
from gdbext.diagnosis.report.thread_report import Frame, ThreadReport
from gdbext.diagnosis.threads.thread_reporting import all_frames
from gdbext.diagnosis.tool_arguments import find_thread
from gdbext.engine.targets.budget import CallLimits
from gdbext.engine.terminal import escape
from gdbext.errors import TargetError, UsageError
from gdbext.hosts.library import notebook

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_variables import PyStack
    from gdbext.diagnosis.session import Session


Entry = TypeVar("Entry")


class Stack(tuple[Entry, ...]):
    """Frames, innermost first. A notebook shows them as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return notebook.stack(self)


class Thread(ThreadReport):
    """One thread: the record that commands report it by. What is an enumeration has the JSON word as its ``value``."""

    _session: Session
    _limits: CallLimits

    @classmethod
    def of(cls, session: Session, report: ThreadReport, limits: CallLimits) -> Thread:
        """The thread of a report."""
        thread = cls(*report._replace(dispatch=Stack(report.dispatch), python_frames=Stack(report.python_frames)))
        thread._session, thread._limits = session, limits
        return thread

    @property
    def report(self) -> ThreadReport:
        """The record that commands report it by: the thread itself."""
        return self

    @property
    def python(self) -> Stack[Frame]:
        """Its Python frames, innermost first."""
        return Stack(self.python_frames)

    @cached_property
    def frames(self) -> Stack[Frame]:
        """All its frames, native and Python, innermost first; read when they are asked for."""
        with self._limits.watch():
            thread = find_thread(self._session.target, str(self.tid))
            return Stack(all_frames(self._session, self._session.threads.snapshot(thread)))

    def __repr__(self) -> str:
        doing = self.wait.phrase if self.wait else self.state.value
        inside = f", in {self.dispatch[0].qualified}" if self.dispatch else ""
        return f"<Thread {escape(self.label)}: {escape(doing + inside)}>"

    def _repr_html_(self) -> str:
        return notebook.thread(self)


class Threads(Sequence[Thread]):
    """All threads, in the order of the report."""

    def __init__(self, threads: Sequence[Thread]) -> None:
        self._threads = tuple(threads)

    def by_tid(self, tid: int) -> Thread:
        """The thread with that id. Raises KeyError."""
        thread = next((thread for thread in self._threads if thread.tid == tid), None)
        if not thread:
            raise KeyError(tid)
        return thread

    @overload
    def __getitem__(self, position: int) -> Thread: ...

    @overload
    def __getitem__(self, position: slice) -> Threads: ...

    def __getitem__(self, position: int | slice) -> Thread | Threads:
        return Threads(self._threads[position]) if isinstance(position, slice) else self._threads[position]

    def __len__(self) -> int:
        return len(self._threads)

    def __iter__(self) -> Iterator[Thread]:
        return iter(self._threads)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._threads)) or "<no thread>"

    def _repr_html_(self) -> str:
        return notebook.threads(self)


class Variable(NamedTuple):
    """``text`` is like ``repr()``, made from memory; nothing of the process is run."""

    name: str
    type: str
    address: int
    text: str

    def __str__(self) -> str:
        return self.text


class Python:
    """The interpreter of a process."""

    def __init__(self, session: Session, limits: CallLimits) -> None:
        self._session = session
        self._limits = limits

    @property
    def version(self) -> str | None:
        """``3.12.4``; None without Python, and where it cannot be read."""
        return self._session.python.version or None

    def frame(self, tid: int, index: int = 0) -> PythonVariables:
        """A Python frame of a thread, 0 is the innermost. Raises GdbextError, IndexError."""
        with self._limits.watch():
            table = self._session.python_threads
            if not table.runtime:
                raise unsupported("there is no Python in this process that can be read")
            if tid not in table.states:
                raise UsageError(f"thread {tid} runs no Python")
            stack = table.frames(tid)
            return PythonVariables.of(
                stack, stack[index], self._limits, lambda: self._session.target.moment.has_run(tid)
            )

    def __repr__(self) -> str:
        return f"<Python {self.version}>"


class PythonVariables(PythonFrame):
    """One Python frame with its local variables."""

    _stack: PyStack
    _limits: CallLimits
    _has_run: Callable[[], bool]

    @classmethod
    def of(cls, stack: PyStack, frame: PythonFrame, limits: CallLimits, has_run: Callable[[], bool]) -> PythonVariables:
        """A frame of the thread with that stack. ``has_run``: True if the thread ran since the frame was read."""
        variables = cls(*frame)
        variables._stack, variables._limits, variables._has_run = stack, limits, has_run
        return variables

    @property
    def locals(self) -> dict[str, Variable]:
        """Name → local variable that is set. Raises GdbextError, also if the thread ran since the frame was read."""
        with self._limits.watch():
            variables = {
                name: Variable(name, value.type or "?", value.address, escape(describe(value)))
                for name, value in self._stack.locals(self).checked().items()
            }
            if self._has_run():
                raise TargetError(
                    "the thread ran while its variables were read", help="gdbext.open(pid, hold=True) keeps it stopped"
                )
            return variables

    def __repr__(self) -> str:
        return f"<Python frame {escape(f'{self.function} at {self.file}:{self.line}')}>"

    def _repr_html_(self) -> str:
        return notebook.table(("", ""), [(name, each.text) for name, each in self.locals.items()], self.function)
