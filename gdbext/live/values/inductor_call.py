"""Which kernel of Inductor's C++ backend a thread calls, and with what: from the Python line that calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.threads.slots import locals_of
from gdbext.errors import GdbextError
from gdbext.inspection.threads.source_lines import SourceReader
from gdbext.model.record import Record
from gdbext.torch.compile.inductor_source import called_kernel, kernel_parameters

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.inspection.session import Session


class KernelArgument(Record):
    """``name`` is that of the Python variable, ``parameter`` as the kernel's source has it ("" where it is not known),
    ``object`` the PyObject, 0 where there is none of that name."""

    name: str
    parameter: str
    object: int


class KernelCall(Record):
    """A call of a kernel."""

    kernel: str
    arguments: tuple[KernelArgument, ...]


class KernelCalls:
    """Reads calls; keeps the generated files."""

    def __init__(self) -> None:
        self._sources: dict[str, list[str]] = {}
        self._parameters: dict[tuple[str, str], tuple[str, ...]] = {}

    def of(self, session: Session, tid: int) -> KernelCall | None:
        """The call that the thread's innermost Python frame makes; None where that cannot be read."""
        try:
            table = session.python_threads
            frame = next(iter(table.frames(tid)), None) if table is not None else None
            if table is None or frame is None or not frame.line:
                return None
            found = called_kernel(self._line(session, frame))
            if found is None:
                return None
            kernel, names = found
            variables = locals_of(table.runtime, frame)
            kinds = self._kinds(frame.file, kernel, len(names))
        except GdbextError:
            return None
        return KernelCall(kernel, tuple(KernelArgument(*each, variables.get(each[0], 0)) for each in zip(names, kinds)))

    def _line(self, session: Session, frame: PythonFrame) -> str:
        if frame.file not in self._sources:
            self._sources[frame.file] = SourceReader(session.target).texts(frame.file)
        lines, number = self._sources[frame.file], frame.line or 0
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def _kinds(self, file: str, kernel: str, count: int) -> tuple[str, ...]:
        if (file, kernel) not in self._parameters:
            self._parameters[file, kernel] = kernel_parameters("\n".join(self._sources[file]), kernel)
        found = self._parameters[file, kernel]
        return found if len(found) == count else ("",) * count
