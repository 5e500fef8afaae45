"""A short text for any Python object of a target, like repr(); nothing of the process is run."""

from __future__ import annotations

import struct
from itertools import islice

from gdbext.cpython.objects import objects as python_objects
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import GdbextError

WIDTH = 80
"""Most characters of the text."""
_ITEMS = 4
_DEPTH = 2
_SIMPLE = {"NoneType": "None", "ellipsis": "Ellipsis", "NotImplementedType": "NotImplemented"}
_CALLABLE = ("function", "method", "builtin_function_or_method", "functools.partial")


def describe(runtime: PythonRuntime, address: int, width: int = WIDTH) -> str:
    """The object at ``address`` in at most ``width`` characters; "<unreadable 0x...>" where there is none."""
    text = _describe(runtime, address, width, 0)
    return text if len(text) <= width else text[: width - 3] + "..."


def _describe(runtime: PythonRuntime, address: int, width: int, depth: int) -> str:
    if not address:
        return "<NULL>"
    try:
        info = runtime.objects.type_of(address)
        return _value(runtime, address, info, width, depth)
    except GdbextError:
        return f"<unreadable {address:#x}>"


def _value(runtime: PythonRuntime, address: int, info: python_objects.TypeInfo, width: int, depth: int) -> str:
    objects = runtime.objects
    if info.name in _SIMPLE:
        return _SIMPLE[info.name]
    if info.name == "bool":
        return str(bool(objects.integer(address)))
    if info.name == "float":
        at = address + runtime.layout.offset("PyFloatObject", "ob_fval")
        return repr(struct.unpack("<d", runtime.memory.read(at, 8))[0])
    if info.flags & python_objects.FLAG_LONG:
        return _named(info, "int", str(objects.integer(address)))
    if info.flags & python_objects.FLAG_UNICODE:
        return _named(info, "str", repr(objects.text(address, width)))
    if info.flags & python_objects.FLAG_BYTES:
        return _named(info, "bytes", repr(objects.bytes(address, 1 << 30)[:width]))
    if info.flags & (python_objects.FLAG_TUPLE | python_objects.FLAG_LIST | python_objects.FLAG_DICT):
        return _container(runtime, address, info, width, depth)
    if info.flags & python_objects.FLAG_TYPE:
        return f"<class {objects.type_info(address).name}>"
    if info.name in _CALLABLE:
        return _callable(runtime, address, info)
    return f"<{info.name} at {address:#x}>"


def _named(info: python_objects.TypeInfo, plain: str, text: str) -> str:
    """A subclass shows its own name."""
    return text if info.name == plain else f"{info.name}({text})"


def _callable(runtime: PythonRuntime, address: int, info: python_objects.TypeInfo) -> str:
    found = runtime.functions.source(address)
    if found is None:
        return f"<{info.name} at {address:#x}>"
    return f"<{info.name} {found.qualname} at {found.place}>" if found.place else f"<{info.name} {found.qualname}>"


def _container(runtime: PythonRuntime, address: int, info: python_objects.TypeInfo, width: int, depth: int) -> str:
    if depth >= _DEPTH:
        return f"<{info.name} at {address:#x}>"

    def inner(item: int) -> str:
        return _describe(runtime, item, width, depth + 1)

    if info.flags & python_objects.FLAG_DICT:
        parts = [f"{inner(key)}: {inner(value)}" for key, value in islice(runtime.dicts.items(address), _ITEMS + 1)]
        return _named(info, "dict", "{" + _joined(parts) + "}")
    if info.flags & python_objects.FLAG_TUPLE:
        items = runtime.objects.tuple_items(address)
        text = _joined([inner(item) for item in items[: _ITEMS + 1]])
        return _named(info, "tuple", f"({text},)" if len(items) == 1 else f"({text})")
    items = runtime.objects.list_items(address)
    return _named(info, "list", "[" + _joined([inner(item) for item in items[: _ITEMS + 1]]) + "]")


def _joined(parts: list[str]) -> str:
    return ", ".join([*parts[:_ITEMS], "..."] if len(parts) > _ITEMS else parts)
