"""The objects of one Python: its memory, the layout of its structures, and a reader for each kind of object."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, cast

from gdbext.cpython.abi.python_layout import PythonLayout
from gdbext.cpython.objects import DictReader, ObjectReader
from gdbext.cpython.objects.code import CodeCache, FunctionReader
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any, TypeVar

    _T = TypeVar("_T")
    _Reader = TypeVar("_Reader", bound=Callable[..., object])


def once(reader: _Reader) -> _Reader:
    """Decorator of a function of a PySpace, which is called only once for the same arguments (``PySpace.once``)."""

    @wraps(reader)
    def call(python: PySpace, *args: Hashable) -> object:
        return python.once(reader, *args)

    return cast("_Reader", call)


class PySpace:
    """The memory and layout that Python objects (``PyRef``) are read with, as they are at one stop of the process;
    ``space`` is that of CPython's structures."""

    def __init__(self, memory: Memory, layout: PythonLayout) -> None:
        self.memory: Memory = memory
        self.layout: PythonLayout = layout
        self.objects = ObjectReader(memory, layout)
        self.space: Space = self.objects.space
        self.dicts = DictReader(self.objects)
        self.codes = CodeCache(self.objects)
        self.functions = FunctionReader(self.objects, self.dicts, self.codes)
        self._answers: dict[Hashable, Any] = {}  # (reader, its arguments) → what it returned

    def once(self, reader: Callable[..., _T], *args: Hashable) -> _T:
        """The result of ``reader(self, *args)``, which is called only once for the same arguments."""
        key = (reader, *args)
        if key not in self._answers:
            self._answers[key] = reader(self, *args)
        answer: _T = self._answers[key]
        return answer
