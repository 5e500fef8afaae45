"""The Python frames of a thread as a value: ``stack.locals_of("_all_gather", RPC_FILE)["states"]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.objects.py_ref import PyRef, PyVariables
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.frame_variables import (
    global_variables,
    locals_of,
    namespace_of,
    objects_at,
    slots_of,
    stack_slots,
    used_names,
    variables,
)
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gdbext.cpython.objects.code import Code
    from gdbext.cpython.objects.py_space import PySpace


class PyStack(list[PythonFrame]):
    """The frames, innermost first; none of a thread that runs no Python."""

    def __init__(self, python: PySpace, frames: Iterable[PythonFrame] = ()) -> None:
        super().__init__(frames)
        self.python = python

    def innermost(self, count: int) -> PyStack:
        """Its first ``count`` frames."""
        return PyStack(self.python, self[:count])

    def code(self, frame: PythonFrame) -> Code | None:
        """The code that a frame runs; None where it cannot be read."""
        try:
            return self.python.codes.get(frame.code)
        except GdbextError:
            return None

    def used_names(self, frame: PythonFrame) -> frozenset[str]:
        """The globals and attributes that a frame's code uses; empty if they cannot be read."""
        return used_names(self.python, frame)

    def locals(self, frame: PythonFrame) -> PyVariables:
        """The fast locals of a frame that are set, with cells opened."""
        try:
            return self._as_values(locals_of(self.python, frame))
        except GdbextError as error:
            return PyVariables(self.python, error)

    def variables(self, frame: PythonFrame) -> PyVariables:
        """The globals that a frame's code uses, then its locals."""
        return self._as_values(variables(self.python, frame))

    def used_globals(self, frame: PythonFrame) -> PyVariables:
        """The variables of its module, and of a class body, that a frame's code uses."""
        return self._as_values(global_variables(self.python, frame))

    def _as_values(self, addresses: Mapping[str, int]) -> PyVariables:
        values = PyVariables(self.python)
        values.update({name: PyRef(self.python, address) for name, address in addresses.items()})
        return values

    def arguments(self, frame: PythonFrame, most: int) -> tuple[int, ...]:
        """Identities of the objects that the variables for a frame's first arguments have. Raises MemoryFault."""
        code = self.code(frame)
        if not code:
            return ()
        return objects_at(self.python, slots_of(self.python, frame), min(code.argument_count, most))

    def slots(self, frame: PythonFrame) -> list[PyRef]:
        """The words of the value stack of a frame, those above its top, too: not all of them are objects."""
        try:
            words = stack_slots(self.python, frame)
        except GdbextError:
            return []
        return [PyRef(self.python, word) for word in words]

    def globals(self, frame: PythonFrame) -> PyRef:
        """The dict of the global variables of a frame's module."""
        try:
            return PyRef(self.python, namespace_of(self.python, frame))
        except GdbextError as error:
            return PyRef(self.python, 0, error)

    def locals_of(self, function: str, file: str) -> PyVariables:
        """Those of the innermost frame of a function in a file whose path ends so; none where it is not on the
        stack."""
        frame = next((each for each in self if each.function == function and each.file.endswith(file)), None)
        return self.locals(frame) if frame else PyVariables(self.python)
