"""What the code of a Python frame can reach by name: its locals, the globals that it uses, attributes.

f_globals and f_locals (frameobject.h, pycore_frame.h) are dicts; the names that the code uses are in co_names, which
has globals and attributes alike (Objects/codeobject.c).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from gdbext.cpython.objects.objects import FLAG_DICT, FLAG_HEAP_TYPE, FLAG_LIST, FLAG_TUPLE
from gdbext.cpython.threads.slots import locals_of, namespace_of
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime

_NAMES = 500
_GLOBALS = 5_000
_ATTRIBUTES = 64
_ITEMS = 32
_CELLS = 16
"""Most names, globals, attributes, items and cells of a closure that are read."""


def used_names(runtime: PythonRuntime, frame: PythonFrame) -> frozenset[str]:
    """The globals and attributes that the frame's code uses (co_names); empty where they cannot be read."""
    try:
        names = runtime.memory.u64(frame.code + runtime.layout.offset("PyCodeObject", "co_names"))
        return frozenset(runtime.objects.text(name, 128) for name in runtime.objects.tuple_items(names, _NAMES))
    except GdbextError:
        return frozenset()


Namespaces = dict[int, dict[str, int]]
"""Dicts of variables that were read already, by address: threads share their modules."""


def variables(runtime: PythonRuntime, frame: PythonFrame, known: Namespaces | None = None) -> dict[str, int]:
    """Name → address of the object: the globals that the code uses, then its locals. Raises nothing."""
    found = global_variables(runtime, frame, known if known is not None else {})
    with suppress(GdbextError):  # the globals alone are an answer, too
        found.update(locals_of(runtime, frame))
    return found


def global_variables(runtime: PythonRuntime, frame: PythonFrame, known: Namespaces) -> dict[str, int]:
    """The variables of its module, and of a class body, that the frame's code uses. Raises nothing."""
    names = used_names(runtime, frame)
    found: dict[str, int] = {}
    for field in ("f_globals", "f_locals") if names else ():
        namespace = _namespace(runtime, frame, field, known)
        found.update((name, namespace[name]) for name in names if name in namespace)
    return found


def _namespace(runtime: PythonRuntime, frame: PythonFrame, field: str, known: Namespaces) -> dict[str, int]:
    try:
        address = namespace_of(runtime, frame, field)
        if address and address not in known:
            known[address] = {}
            known[address] = dict(_named(runtime, runtime.dicts.items(address, _GLOBALS)))
    except GdbextError:
        return {}
    return known.get(address, {})


def _named(runtime: PythonRuntime, entries: Iterator[tuple[int, int]]) -> Iterator[tuple[str, int]]:
    for key, value in entries:
        try:
            yield runtime.objects.text(key, 128), value
        except GdbextError:
            continue


def attributes(runtime: PythonRuntime, address: int) -> Mapping[str, int]:
    """The attributes of an instance by name; empty where there are none or they cannot be read."""
    found: dict[str, int] = {}
    try:
        if not runtime.objects.type_of(address).flags & FLAG_HEAP_TYPE:
            return found
        for key, value in runtime.dicts.attributes(address):
            found[runtime.objects.text(key, 128)] = value
            if len(found) >= _ATTRIBUTES:
                break
    except GdbextError:
        pass  # what was read until then
    return found


def items(runtime: PythonRuntime, address: int) -> tuple[int, ...]:
    """The first items of a list or tuple, the first values of a dict; empty for anything else."""
    objects = runtime.objects
    try:
        flags = objects.type_of(address).flags
        if flags & FLAG_LIST:
            return objects.list_items(address)[:_ITEMS]
        if flags & FLAG_TUPLE:
            return objects.tuple_items(address)[:_ITEMS]
        if flags & FLAG_DICT:
            return tuple(value for _, value in runtime.dicts.items(address, _ITEMS))
    except GdbextError:
        pass  # a container that changes just now has nothing to show
    return ()


def closure_of(runtime: PythonRuntime, address: int) -> tuple[int, ...]:
    """Addresses of what a function has in its closure; nothing for what is no function."""
    try:
        if not address or address & 7 or runtime.objects.type_of(address).name != "function":
            return ()
        closure = runtime.memory.u64(address + runtime.layout.offset("PyFunctionObject", "func_closure"))
        cells = runtime.objects.tuple_items(closure, _CELLS) if closure else ()
        at = runtime.layout.offset("PyCellObject", "ob_ref")
        return tuple(runtime.memory.u64(cell + at) for cell in cells)
    except GdbextError:
        return ()
