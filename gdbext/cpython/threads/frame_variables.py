"""The objects that a Python frame holds, or that its code can reach by name: locals, used globals, attributes, value
stack.

f_globals and f_locals (frameobject.h, pycore_frame.h) are dicts; the names that the code uses are in co_names, which
has globals and attributes alike (Objects/codeobject.c).

f_localsplus (frameobject.h) and localsplus (pycore_frame.h): first the fast locals, cells and free variables, then
the value stack of at most co_stacksize slots.

A signal handler gets the signal's number and the frame that it interrupted (Modules/signalmodule.c), so that a function
whose arguments are a number and the frame object of its caller is one. That needs no names of C functions.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from gdbext.cpython.abi import FrameObjects, InterpreterFrames
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.objects import FLAG_DICT, FLAG_HEAP_TYPE, FLAG_LIST, FLAG_TUPLE, slot_attributes
from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gdbext.cpython.objects.py_space import PySpace

_LOCALS_LIMIT = 10_000
_STACK_LIMIT = 1_000


def locals_of(runtime: PySpace, frame: PythonFrame) -> dict[str, int]:
    """Fast locals that are set, by name: address of the object; cells are opened. Raises MemoryFault, BadData.

    Globals and the variables of class bodies and exec() are not fast locals.
    """
    names = runtime.codes.get(frame.code).local_names()[:_LOCALS_LIMIT]
    values = objects_at(runtime, slots_of(runtime, frame), len(names))
    found = ((name, runtime.once(_open_cell, value)) for name, value in zip(names, values) if value)
    return {name: value for name, value in found if value}


def namespace_of(runtime: PySpace, frame: PythonFrame) -> int:
    """Address of the dict of the frame's global variables. Raises MemoryFault, LayoutError."""
    return _structure(runtime, frame).f_globals


def _structure(runtime: PySpace, frame: PythonFrame) -> py.PyFrameObject | py.PyInterpreterFrame:
    if isinstance(runtime.layout.abi.frames, FrameObjects):
        return py.PyFrameObject(runtime.space, frame.address)
    return py.PyInterpreterFrame(runtime.space, frame.address)


def stack_slots(runtime: PySpace, frame: PythonFrame) -> tuple[int, ...]:
    """All objects on the value stack, also above its top: what is used and what is left over cannot be distinguished
    while C code runs, so that the caller must prove what it finds. Raises MemoryFault, BadData."""
    size = py.PyCodeObject(runtime.space, frame.code).co_stacksize
    return tuple(filter(None, objects_at(runtime, value_stack(runtime, frame), min(size, _STACK_LIMIT))))


def objects_at(runtime: PySpace, address: int, count: int) -> tuple[int, ...]:
    """The objects that ``count`` slots of a frame refer to; 0 for an empty slot, and for a number that is in the slot
    itself. Raises MemoryFault."""
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
    """The position of the frame in its code: f_lasti, or the address of an instruction; 0 if it cannot be read."""
    form = runtime.layout.abi.frames
    with suppress(GdbextError):
        if isinstance(form, FrameObjects):
            return py.PyFrameObject(runtime.space, frame.address).f_lasti & 0xFFFFFFFF
        return py.PyInterpreterFrame(runtime.space, frame.address).value(form.instruction)
    return 0


def generator_frame(runtime: PySpace, generator: int) -> PythonFrame | None:
    """The frame of a coroutine or generator; None for one that has ended. Raises MemoryFault, BadData."""
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
    """The object in a cell; any other object itself."""
    with suppress(GdbextError):
        if runtime.objects.type_of(address).name == "cell":
            return py.PyCellObject(runtime.space, address).ob_ref
    return address


_NAMES = 500
_GLOBALS = 5_000
_ATTRIBUTES = 64
_ITEMS = 32
"""Most names, globals, attributes and items that are read."""


def used_names(runtime: PySpace, frame: PythonFrame) -> frozenset[str]:
    """The globals and attributes that the frame's code uses (co_names); empty if they cannot be read."""
    return runtime.once(_names_used, frame.code)


def names_used(runtime: PySpace, code: int) -> frozenset[str]:
    """The same of a code object."""
    return runtime.once(_names_used, code)


def _names_used(runtime: PySpace, code: int) -> frozenset[str]:
    try:
        names = py.PyCodeObject(runtime.space, code).co_names
        return frozenset(runtime.objects.name(name) for name in runtime.objects.tuple_items(names, _NAMES))
    except GdbextError:
        return frozenset()


def variables(runtime: PySpace, frame: PythonFrame) -> Mapping[str, int]:
    """Name → address of the object: the globals that the code uses, then its locals. Raises nothing."""
    return runtime.once(_variables, frame)


def _variables(runtime: PySpace, frame: PythonFrame) -> dict[str, int]:
    found = global_variables(runtime, frame)
    with suppress(GdbextError):  # the globals alone are an answer, too
        found.update(locals_of(runtime, frame))
    return found


def name_of(runtime: PySpace, frame: PythonFrame, address: int) -> str:
    """The variable of a frame that is the object, or the attribute of its ``self``; "" if none is. Raises nothing."""
    own = variables(runtime, frame)
    name = next((name for name, value in own.items() if value == address and name != "self"), "")
    if name or "self" not in own:
        return name
    used = used_names(runtime, frame)
    fields = attributes(runtime, own["self"]).items()
    return next((f"self.{name}" for name, value in fields if value == address and name in used), "")


def global_variables(runtime: PySpace, frame: PythonFrame) -> dict[str, int]:
    """The variables of its module, and of a class body, that the frame's code uses. Raises nothing."""
    names = used_names(runtime, frame)
    known: dict[str, int] = {}
    for is_local in (False, True) if names else ():
        with suppress(GdbextError):
            structure = _structure(runtime, frame)
            address = structure.f_locals if is_local else structure.f_globals
            namespace = runtime.once(_dict_by_name, address) if address else {}
            known.update((name, namespace[name]) for name in names if name in namespace)
    return known


def _dict_by_name(runtime: PySpace, namespace: int) -> Mapping[str, int]:
    """The variables that a dict has; threads share their modules'."""
    values: dict[str, int] = {}
    try:
        for key, value in runtime.dicts.items(namespace, _GLOBALS):
            try:
                values[runtime.objects.name(key)] = value
            except GdbextError:
                continue
    except GdbextError:
        return {}
    return values


def attributes(runtime: PySpace, address: int) -> Mapping[str, int]:
    """The attributes of an instance by name, those in slots included; empty where there are none or they cannot be
    read."""
    fields: dict[str, int] = {}
    with suppress(GdbextError):  # what was read until then
        if runtime.objects.type_of(address).flags & FLAG_HEAP_TYPE:
            own = chain(runtime.dicts.attributes(address), slot_attributes(runtime.objects, address))
            for key, value in own:
                fields[runtime.objects.name(key)] = value
                if len(fields) >= _ATTRIBUTES:
                    break
    return fields


def items(runtime: PySpace, address: int) -> tuple[int, ...]:
    """The first items of a list or tuple, the first values of a dict; empty for anything else."""
    objects = runtime.objects
    with suppress(GdbextError):  # a container that changes just now has nothing to show
        flags = objects.type_of(address).flags
        if flags & FLAG_LIST:
            return objects.list_items(address)[:_ITEMS]
        if flags & FLAG_TUPLE:
            return objects.tuple_items(address)[:_ITEMS]
        if flags & FLAG_DICT:
            return tuple(value for _, value in runtime.dicts.items(address, _ITEMS))
    return ()


def closure_names(runtime: PySpace, address: int) -> Mapping[str, int]:
    """The variables that a function has in its closure, by name; empty for what is no function."""
    return {name: value.address for name, value in PyRef(runtime, address).closure_variables().items()}
