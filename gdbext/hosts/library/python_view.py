"""The Python of a process as the library shows it: frames with their local variables.

Variable: an object that a name refers to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.threads.frame_variables import locals_of
from gdbext.cpython.threads.object_text import describe
from gdbext.engine.record import Record
from gdbext.errors import GdbextError, PythonUnsupported, UsageError
from gdbext.hosts.library import notebook
from gdbext.hosts.library.limits import CallLimits

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.diagnosis.session import Session


class Variable(Record):
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
        return self._session.python.version if self._session.python is not None else None

    def frame(self, tid: int, index: int = 0) -> PythonVariables:
        """A Python frame of a thread, 0 is the innermost. Raises GdbextError, IndexError."""
        with self._limits.watch():
            return self._frame(tid, index)

    def _frame(self, tid: int, index: int) -> PythonVariables:
        table = self._session.python_threads
        if table is None:
            raise PythonUnsupported("there is no Python in this process that can be read")
        if tid not in table.states:
            raise UsageError(f"thread {tid} runs no Python")
        runtime = table.runtime
        frames = [frame for state in table.states[tid] for frame in runtime.frames.stack(state).frames]
        return PythonVariables(runtime, frames[index], self._limits)

    def __repr__(self) -> str:
        return f"<Python {self.version}>"


class PythonVariables:
    """One frame: where it is, and its local variables."""

    def __init__(self, runtime: PythonRuntime, frame: PythonFrame, limits: CallLimits) -> None:
        self._runtime = runtime
        self._frame = frame
        self._limits = limits

    @property
    def function(self) -> str:
        """The function's qualified name, where the version keeps it."""
        return self._frame.function

    @property
    def file(self) -> str:
        """The file of its code."""
        return self._frame.file

    @property
    def line(self) -> int | None:
        """The line that the frame is at."""
        return self._frame.line

    @property
    def locals(self) -> dict[str, Variable]:
        """Name → local variable, of those that are set. Raises GdbextError."""
        with self._limits.watch():
            found = locals_of(self._runtime, self._frame)
            return {name: self._variable(name, address) for name, address in found.items()}

    def _variable(self, name: str, address: int) -> Variable:
        try:
            kind = self._runtime.objects.type_of(address).name
        except GdbextError:
            kind = "?"
        return Variable(name, kind, address, notebook.plain(describe(self._runtime, address)))

    def __repr__(self) -> str:
        return f"<Python frame {notebook.plain(f'{self.function} at {self.file}:{self.line}')}>"

    def _repr_html_(self) -> str:
        return notebook.facts(self.function, [(name, each.text) for name, each in self.locals.items()])
