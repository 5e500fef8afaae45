"""The objects of one Python: its memory, the layout of its structures, and a reader for each kind of object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi.python_layout import PythonLayout
from gdbext.cpython.objects import DictReader, ObjectReader
from gdbext.cpython.objects.code import CodeCache, FunctionReader
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any, TypeVar

    _T = TypeVar("_T")


class PySpace:
    """For values (``PyRef``) what Space is for structures of C++; ``space`` is that of the structures of CPython."""

    def __init__(self, memory: Memory, layout: PythonLayout) -> None:
        self.memory: Memory = memory
        self.layout: PythonLayout = layout
        self.objects = ObjectReader(memory, layout)
        self.space: Space = self.objects.space
        self.dicts = DictReader(self.objects)
        self.codes = CodeCache(self.objects)
        self.functions = FunctionReader(self.objects, self.dicts, self.codes)
        self._found: dict[Hashable, Any] = {}

    def once(self, find: Callable[..., _T], *args: Hashable) -> _T:
        """Call ``find(self, *args)`` once in this moment, and return the same again however often it is asked for."""
        key = (find, *args)
        if key not in self._found:
            self._found[key] = find(self, *args)
        found: _T = self._found[key]
        return found
