"""Callables: which Python function is behind a PyObject*, and where it was defined.

Layouts: Include/funcobject.h (cpython/funcobject.h), classobject.h, methodobject.h, Modules/_functoolsmodule.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdbext.cpython.objects.objects import FLAG_TYPE
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import BadData, GdbextError, MemoryFault

_DEPTH = 8
"""Most wrappers (partial, bound method, __wrapped__) that are followed."""
_NAME_LIMIT = 512


@dataclass(frozen=True)
class PythonFunction:
    """A callable: ``qualname`` as in __qualname__ (module not included), source ``file`` and first ``line``.

    ``kind`` is "function", "builtin", "class", "instance" or "object"; file and line are None where there is no
    Python source. ``wrappers`` names what was followed to get here, outermost first ("functools.partial", "method").
    """

    qualname: str
    file: str | None
    line: int | None
    kind: str
    address: int
    wrappers: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """ "file:line", or "" where there is none."""
        return f"{self.file}:{self.line}" if self.file is not None else ""


def function_source(runtime: PythonRuntime, address: int) -> PythonFunction | None:
    """The function behind the callable at ``address``; None where no object can be read there."""
    wrappers: list[str] = []
    seen: set[int] = set()
    try:
        for _ in range(_DEPTH):
            if address in seen:
                break
            seen.add(address)
            inner = _unwrap(runtime, address)
            if inner is None:
                break
            wrappers.append(runtime.objects.type_of(address).name)
            address = inner
        return _describe(runtime, address, tuple(wrappers))
    except GdbextError:
        return None


def _unwrap(runtime: PythonRuntime, address: int) -> int | None:
    """The callable inside a partial, a bound method or a functools.wraps'ed function."""
    layout, memory = runtime.layout, runtime.memory
    kind = runtime.objects.type_of(address).name
    if kind == "method":
        return memory.u64(address + layout.offset("PyMethodObject", "im_func"))
    if kind == "functools.partial":
        return memory.u64(address + layout.offset("partialobject", "fn"))
    if kind == "function":
        namespace = memory.u64(address + layout.offset("PyFunctionObject", "func_dict"))
        return runtime.dicts.get(namespace, "__wrapped__") if namespace else None
    return None


def _describe(runtime: PythonRuntime, address: int, wrappers: tuple[str, ...]) -> PythonFunction:
    info = runtime.objects.type_of(address)
    if info.name == "function":
        return _function(runtime, address, wrappers)
    if info.name == "builtin_function_or_method":
        method = runtime.memory.u64(address + runtime.layout.offset("PyCFunctionObject", "m_ml"))
        name = runtime.memory.cstring(runtime.memory.u64(method), _NAME_LIMIT).decode("utf-8", "replace")
        return PythonFunction(name, None, None, "builtin", address, wrappers)
    if info.flags & FLAG_TYPE:
        return PythonFunction(runtime.objects.type_info(address).name, None, None, "class", address, wrappers)
    call = _class_attribute(runtime, info.address, "__call__")
    if call is not None and runtime.objects.type_of(call).name == "function":
        found = _function(runtime, call, wrappers)
        return PythonFunction(found.qualname, found.file, found.line, "instance", address, wrappers)
    return PythonFunction(info.name, None, None, "object", address, wrappers)


def _function(runtime: PythonRuntime, address: int, wrappers: tuple[str, ...]) -> PythonFunction:
    layout, memory = runtime.layout, runtime.memory
    code = runtime.codes.get(memory.u64(address + layout.offset("PyFunctionObject", "func_code")))
    name = memory.u64(address + layout.offset("PyFunctionObject", "func_qualname"))
    try:
        qualname = runtime.objects.text(name, _NAME_LIMIT)
    except (BadData, MemoryFault):
        qualname = code.name
    return PythonFunction(qualname, code.file, code.first_line, "function", address, wrappers)


def _class_attribute(runtime: PythonRuntime, type_address: int, name: str) -> int | None:
    """An attribute of a class or its bases, by the method resolution order."""
    layout, memory = runtime.layout, runtime.memory
    mro = memory.u64(type_address + layout.offset("PyTypeObject", "tp_mro"))
    for base in runtime.objects.tuple_items(mro, 1000) if mro else (type_address,):
        namespace = memory.u64(base + layout.offset("PyTypeObject", "tp_dict"))  # 0: a static built-in type of 3.12+
        found = runtime.dicts.get(namespace, name) if namespace else None
        if found is not None:
            return found
    return None
