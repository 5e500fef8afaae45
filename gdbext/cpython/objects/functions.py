"""Callables: which Python function is behind a PyObject*, and where it was defined.

Layouts: Include/funcobject.h (cpython/funcobject.h), classobject.h, methodobject.h, Modules/_functoolsmodule.c.
"""

from __future__ import annotations

from gdbext.cpython.objects.code import CodeCache
from gdbext.cpython.objects.dicts import DictReader
from gdbext.cpython.objects.objects import FLAG_TYPE, ObjectReader
from gdbext.errors import BadData, GdbextError, MemoryFault
from gdbext.model.record import Record

_DEPTH = 8
"""Most wrappers (partial, bound method, __wrapped__) that are followed."""
_NAME_LIMIT = 512


class PythonFunction(Record):
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
    code: int = 0
    """Address of the code object; 0 where there is no Python source."""

    @property
    def place(self) -> str:
        """ "file:line", or "" where there is none."""
        return f"{self.file}:{self.line}" if self.file is not None else ""


class FunctionReader:
    """Finds the Python function behind a callable object."""

    def __init__(self, objects: ObjectReader, dicts: DictReader, codes: CodeCache) -> None:
        self._objects = objects
        self._dicts = dicts
        self._codes = codes
        self._memory = objects.memory
        self._layout = objects.layout

    def source(self, address: int) -> PythonFunction | None:
        """The function behind the callable at ``address``; None where no object can be read there."""
        wrappers: list[str] = []
        seen: set[int] = set()
        try:
            for _ in range(_DEPTH):
                if address in seen:
                    break
                seen.add(address)
                inner = self._unwrap(address)
                if inner is None:
                    break
                wrappers.append(self._objects.type_of(address).name)
                address = inner
            return self._describe(address, tuple(wrappers))
        except GdbextError:
            return None

    def _unwrap(self, address: int) -> int | None:
        """The callable inside a partial, a bound method or a functools.wraps'ed function."""
        layout, memory = self._layout, self._memory
        kind = self._objects.type_of(address).name
        if kind == "method":
            return memory.u64(address + layout.offset("PyMethodObject", "im_func"))
        if kind == "functools.partial":
            return memory.u64(address + layout.offset("partialobject", "fn"))
        if kind == "function":
            namespace = memory.u64(address + layout.offset("PyFunctionObject", "func_dict"))
            return self._dicts.get(namespace, "__wrapped__") if namespace else None
        return None

    def _describe(self, address: int, wrappers: tuple[str, ...]) -> PythonFunction:
        info = self._objects.type_of(address)
        if info.name == "function":
            return self._function(address, wrappers)
        if info.name == "builtin_function_or_method":
            method = self._memory.u64(address + self._layout.offset("PyCFunctionObject", "m_ml"))
            name = self._memory.cstring(self._memory.u64(method), _NAME_LIMIT).decode("utf-8", "replace")
            return PythonFunction(name, None, None, "builtin", address, wrappers)
        if info.flags & FLAG_TYPE:
            return PythonFunction(self._objects.type_info(address).name, None, None, "class", address, wrappers)
        call = self._dicts.inherited_attribute(info.address, "__call__")
        if call is not None and self._objects.type_of(call).name == "function":
            found = self._function(call, wrappers)
            return PythonFunction(found.qualname, found.file, found.line, "instance", address, wrappers, found.code)
        return PythonFunction(info.name, None, None, "object", address, wrappers)

    def _function(self, address: int, wrappers: tuple[str, ...]) -> PythonFunction:
        layout, memory = self._layout, self._memory
        code_address = memory.u64(address + layout.offset("PyFunctionObject", "func_code"))
        code = self._codes.get(code_address)
        name = memory.u64(address + layout.offset("PyFunctionObject", "func_qualname"))
        try:
            qualname = self._objects.text(name, _NAME_LIMIT)
        except (BadData, MemoryFault):
            qualname = code.name
        return PythonFunction(qualname, code.file, code.first_line, "function", address, wrappers, code_address)
