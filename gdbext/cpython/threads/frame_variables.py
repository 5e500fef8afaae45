"""The objects that a Python frame refers to, or that its code reaches by name: locals, used globals, attributes, value
stack. ``PyStack`` returns those of a thread's frames as PyRef: ``stack.locals_of("_all_gather", RPC_FILE)["states"]``.

f_localsplus (frameobject.h) and localsplus (pycore_frame.h) have the fast locals, cells and free variables first, then
the value stack of at most co_stacksize slots.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from gdbext.cpython.abi import FrameObjects, InterpreterFrames
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.objects.py_ref import PyRef, PyVariables
from gdbext.cpython.objects.py_space import PySpace, once
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gdbext.cpython.objects.code import Code


_LOCALS_LIMIT = 10_000
_STACK_LIMIT = 1_000


def locals_of(runtime: PySpace, frame: PythonFrame) -> dict[str, int]:
    """Name → address of the object, for the fast locals that are set; cells are opened. Raises MemoryFault, BadData."""
    names = runtime.codes.get(frame.code).local_names()[:_LOCALS_LIMIT]
    values = objects_at(runtime, slots_of(runtime, frame), len(names))
    opened = ((name, runtime.once(_open_cell, value)) for name, value in zip(names, values) if value)
    return {name: value for name, value in opened if value}


def namespace_of(runtime: PySpace, frame: PythonFrame) -> int:
    """Address of the dict of the frame's global variables. Raises MemoryFault, LayoutError."""
    return _structure(runtime, frame).f_globals


def _structure(runtime: PySpace, frame: PythonFrame) -> py.PyFrameObject | py.PyInterpreterFrame:
    """The C structure of a frame: a PyFrameObject up to 3.10, then a _PyInterpreterFrame."""
    if isinstance(runtime.layout.abi.frames, FrameObjects):
        return py.PyFrameObject(runtime.space, frame.address)
    return py.PyInterpreterFrame(runtime.space, frame.address)


def stack_slots(runtime: PySpace, frame: PythonFrame) -> tuple[int, ...]:
    """The words in all slots of the value stack, also above its top, which is unknown while C code runs: those need not
    be objects. Raises MemoryFault, BadData."""
    size = py.PyCodeObject(runtime.space, frame.code).co_stacksize
    return tuple(filter(None, objects_at(runtime, value_stack(runtime, frame), min(size, _STACK_LIMIT))))


def objects_at(runtime: PySpace, address: int, count: int) -> tuple[int, ...]:
    """Addresses of the objects in ``count`` slots of a frame from ``address`` on, without tag bits; 0 for a slot that
    is empty or has a number. Raises MemoryFault."""
    words = runtime.memory.words(address, count) if count else ()
    form = runtime.layout.abi.frames
    tag_bits = form.tag_bits if isinstance(form, InterpreterFrames) else 0
    if not tag_bits:
        return words
    return tuple(0 if word & tag_bits == tag_bits else word & ~tag_bits for word in words)


def value_stack(runtime: PySpace, frame: PythonFrame) -> int:
    """Address of the first slot of the value stack. Raises MemoryFault."""
    structure = _structure(runtime, frame)
    if isinstance(structure, py.PyFrameObject):
        return structure.f_valuestack
    return structure.localsplus + 8 * py.PyCodeObject(runtime.space, frame.code).co_nlocalsplus


def instruction(runtime: PySpace, frame: PythonFrame) -> int:
    """The frame's position: f_lasti up to 3.10, later the address of its instruction; 0 if it cannot be read."""
    form = runtime.layout.abi.frames
    with suppress(GdbextError):
        if isinstance(form, FrameObjects):
            return py.PyFrameObject(runtime.space, frame.address).f_lasti & 0xFFFFFFFF
        return py.PyInterpreterFrame(runtime.space, frame.address).value(form.instruction)
    return 0


def generator_frame(runtime: PySpace, generator: int) -> PythonFrame | None:
    """The frame of the coroutine or generator at that address; None if it has ended. Raises MemoryFault, BadData."""
    form, coroutine = runtime.layout.abi.frames, py.PyCoroObject(runtime.space, generator)
    if isinstance(form, FrameObjects):
        address = coroutine.cr_frame.address
        if not address:
            return None
        code = runtime.codes.get(coroutine.cr_frame.f_code)
        line = code.line(coroutine.cr_frame.f_lasti * form.lasti_unit)
    else:
        inner = coroutine.cr_iframe
        address, code = inner.address, runtime.codes.get(inner.value(form.code) & ~form.tag_bits)
        line = code.line(code.offset_of(inner.value(form.instruction)))
    return PythonFrame(code.name, code.file, line, address, code.address)


def slots_of(runtime: PySpace, frame: PythonFrame) -> int:
    """Address of the first fast local."""
    structure = _structure(runtime, frame)
    return structure.f_localsplus if isinstance(structure, py.PyFrameObject) else structure.localsplus


def _open_cell(runtime: PySpace, address: int) -> int:
    """Address of the object in a cell (a variable that closures share); any other object's own address."""
    with suppress(GdbextError):
        if runtime.objects.type_of(address).name == "cell":
            return py.PyCellObject(runtime.space, address).ob_ref
    return address


_NAMES, _GLOBALS = 500, 5_000  # most names of a code object, and most variables of a module, that are read


@once
def used_names(runtime: PySpace, code: int) -> frozenset[str]:
    """The globals and attributes that a code object uses (co_names); empty if they cannot be read."""
    try:
        names = py.PyCodeObject(runtime.space, code).co_names
        return frozenset(runtime.objects.name(name) for name in runtime.objects.tuple_items(names, _NAMES))
    except GdbextError:
        return frozenset()


@once
def variables(runtime: PySpace, frame: PythonFrame) -> Mapping[str, int]:
    """Name → address of the value: the globals that the code uses, then its locals. Raises nothing."""
    values = global_variables(runtime, frame)
    with suppress(GdbextError):  # the globals alone are an answer, too
        values.update(locals_of(runtime, frame))
    return values


def name_of(runtime: PySpace, frame: PythonFrame, address: int) -> str:
    """The variable of the frame that refers to the object at ``address``, ``lock``, or the attribute of its ``self``
    that does, ``self.lock``; "" if none does. Raises nothing."""
    own = variables(runtime, frame)
    name = next((name for name, value in own.items() if value == address and name != "self"), "")
    if name or "self" not in own:
        return name
    used = used_names(runtime, frame.code)
    fields = attributes(runtime, own["self"]).items()
    return next((f"self.{name}" for name, value in fields if value == address and name in used), "")


def global_variables(runtime: PySpace, frame: PythonFrame) -> dict[str, int]:
    """Name → address of the value: the variables of its module, and of a class body or exec() (f_locals), that the
    frame's code uses. Raises nothing."""
    names = used_names(runtime, frame.code)
    values: dict[str, int] = {}
    for member in ("f_globals", "f_locals") if names else ():
        with suppress(GdbextError):
            address = getattr(_structure(runtime, frame), member)
            namespace = _dict_by_name(runtime, address) if address else {}
            values.update((name, namespace[name]) for name in names & namespace.keys())
    return values


@once
def _dict_by_name(runtime: PySpace, namespace: int) -> Mapping[str, int]:
    """Key → address of the value, of a dict with str keys; empty if its entries cannot be read."""
    values: dict[str, int] = {}
    try:
        for key, value in runtime.dicts.items(namespace, _GLOBALS):
            with suppress(GdbextError):
                values[runtime.objects.name(key)] = value
    except GdbextError:
        return {}
    return values


def attributes(runtime: PySpace, address: int) -> Mapping[str, int]:
    """Name → address of the value: ``PyRef.attributes`` of the object at ``address``."""
    return {name: value.address for name, value in PyRef(runtime, address).attributes().items()}


class PyStack(list[PythonFrame]):
    """The Python frames of a thread, innermost first; none if it runs no Python."""

    def __init__(self, python: PySpace, frames: Iterable[PythonFrame] = ()) -> None:
        super().__init__(frames)
        self.python = python

    def innermost(self, count: int) -> PyStack:
        return PyStack(self.python, self[:count])

    def code(self, frame: PythonFrame) -> Code | None:
        """The code object that a frame runs; None if it cannot be read."""
        try:
            return self.python.codes.get(frame.code)
        except GdbextError:
            return None

    def used_names(self, frame: PythonFrame) -> frozenset[str]:
        return used_names(self.python, frame.code)

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
        """Name → address, as name → PyRef."""
        values = PyVariables(self.python)
        values.update({name: PyRef(self.python, address) for name, address in addresses.items()})
        return values

    def arguments(self, frame: PythonFrame, most: int) -> tuple[int, ...]:
        """Addresses of a frame's first ``most`` positional arguments, as its variables are now. Raises MemoryFault."""
        code = self.code(frame)
        return objects_at(self.python, slots_of(self.python, frame), min(code.argument_count, most)) if code else ()

    def slots(self, frame: PythonFrame) -> list[PyRef]:
        """The words of a frame's value stack, also above its top, so that not all are objects."""
        try:
            return [PyRef(self.python, word) for word in stack_slots(self.python, frame)]
        except GdbextError:
            return []

    def globals(self, frame: PythonFrame) -> PyRef:
        """The dict of the global variables of a frame's module."""
        try:
            return PyRef(self.python, namespace_of(self.python, frame))
        except GdbextError as error:
            return PyRef(self.python, 0, error)

    def locals_of(self, function: str, file: str) -> PyVariables:
        """The locals of the innermost frame of ``function`` in a file whose path ends with ``file``; else none."""
        calls = (frame for frame in self if frame.function == function and frame.file.endswith(file))
        return next(map(self.locals, calls), PyVariables(self.python))
