"""A short text for any Python object of a target, like repr(); nothing of the process is run."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython import objects as python_objects
from gdbext.cpython.abi import FrameObjects
from gdbext.cpython.abi.python_structures import PyFloatObject, PyInterpreterFrame, PyThreadState, PyTracebackObject
from gdbext.cpython.objects import base_classes
from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.threads.frame_variables import locals_of
from gdbext.cpython.threads.loop_names import is_in_loop_of
from gdbext.engine.targets.system.linux import HIDDEN, is_secret
from gdbext.engine.terminal import cut
from gdbext.errors import NOT_RECORDED, GdbextError, MemoryFault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gdbext.cpython.objects.py_space import PySpace
    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

    SpecialText = Callable[[PyRef], str]
    """The text of an object that the caller knows better (a tensor), "" for any other. Raises GdbextError."""

WIDTH = 80  # most characters of the text
_ITEMS = 4  # most items of a container that are shown
_DEPTH = 2  # containers inside as many others are not opened
_COUNTED = 1000  # most keys of a dict that are counted
_EXCEPTION_ARGS = 24
"""The offset of ``args``: an object's header, two words in a build with the GIL, and the dict are before it."""
_SIMPLE = {"NoneType": "None", "ellipsis": "Ellipsis", "NotImplementedType": "NotImplemented"}
_CALLABLE = ("function", "method", "builtin_function_or_method", "functools.partial")
_ROOM = 24  # characters that a cut text leaves for its length


def describe(value: PyRef, width: int = WIDTH, special: SpecialText | None = None) -> str:
    """The text of an object, at most ``width`` characters; "<unreadable 0x...>" if there is none, "<not in the
    recording>" if a replay lacks it."""
    if not value.python:
        return "<NULL>"
    return cut(_Describer(value.python, width, special).describe(value.address, 0), width)


class _Describer:
    """Describes an object and its items in about ``width`` characters."""

    def __init__(self, runtime: PySpace, width: int, special: SpecialText | None) -> None:
        self._runtime = runtime
        self._width = width
        self._special = special

    def describe(self, address: int, depth: int) -> str:
        """The text of an object that is contained in ``depth`` others."""
        if not address:
            return "<NULL>"
        try:
            info = self._runtime.objects.type_of(address)
            special = self._special(PyRef(self._runtime, address)) if self._special else ""
            return special or self._value(address, info, depth)
        except MemoryFault as fault:
            return f"<{NOT_RECORDED}>" if fault.reason == NOT_RECORDED else f"<unreadable {address:#x}>"
        except GdbextError:
            return f"<unreadable {address:#x}>"

    def _value(self, address: int, info: python_objects.TypeInfo, depth: int) -> str:
        """The text of an object of class ``info`` that is contained in ``depth`` others. Raises GdbextError."""
        objects, flags = self._runtime.objects, info.flags
        if info.name in _SIMPLE:
            return _SIMPLE[info.name]
        if info.name == "bool":
            return str(bool(objects.integer(address)))
        if info.name == "float":
            return repr(PyFloatObject(self._runtime.space, address).ob_fval)
        if flags & python_objects.FLAG_LONG:
            plain, text = "int", str(objects.integer(address))
        elif flags & python_objects.FLAG_UNICODE:
            plain, text = "str", self._cut(objects.text(address, self._width), objects.length(address))
        elif flags & python_objects.FLAG_BYTES:
            whole = objects.bytes(address, 1 << 30)
            plain, text = "bytes", self._cut(whole[: self._width], len(whole))
        elif flags & (python_objects.FLAG_TUPLE | python_objects.FLAG_LIST | python_objects.FLAG_DICT):
            if depth >= _DEPTH:
                return f"<{info.name} at {address:#x}>"
            if flags & python_objects.FLAG_DICT:
                plain, text = "dict", "{" + self._items(address, depth) + "}"
            elif flags & python_objects.FLAG_TUPLE:
                items = objects.tuple_items(address)
                plain, text = "tuple", f"({self._listed(items, depth)}{',' if len(items) == 1 else ''})"
            else:
                plain, text = "list", f"[{self._listed(objects.list_items(address), depth)}]"
        elif flags & python_objects.FLAG_TYPE:
            return f"<class {objects.type_info(address).name}>"
        else:
            function = self._runtime.functions.source(address) if info.name in _CALLABLE else None
            if not function:
                return f"<{info.name} at {address:#x}>"
            return f"<{info.name} {function.qualname}{f' at {function.place}' if function.place else ''}>"
        return text if info.name == plain else f"{info.name}({text})"  # a subclass shows its own name

    def _cut(self, value: str | bytes, length: int) -> str:
        """repr() of a str or bytes that may be cut: with ``length``, that of the whole, if it is."""
        whole = repr(value)
        if len(whole) <= self._width and len(value) == length:
            return whole
        beginning = repr(value[: max(8, self._width - _ROOM)])[: self._width - _ROOM].rstrip("'\"")
        unit = "byte" if isinstance(value, bytes) else "character"
        return f"{beginning}…{whole[-1]} ({length} {unit}{'' if length == 1 else 's'})"

    def _items(self, address: int, depth: int) -> str:
        """The first items of a dict, without values that are named like secrets, and how many there are."""
        pairs = list(islice(self._runtime.dicts.items(address), _COUNTED))
        keys = [(self.describe(key, depth + 1), value) for key, value in pairs[:_ITEMS]]
        texts = [f"{key}: {HIDDEN if is_secret(key[1:-1]) else self.describe(value, depth + 1)}" for key, value in keys]
        more = "or more " if len(pairs) == _COUNTED else ""
        return ", ".join([*texts, f"… {len(pairs)} {more}keys"] if len(pairs) > _ITEMS else texts)

    def _listed(self, items: Sequence[int], depth: int) -> str:
        texts = [self.describe(item, depth + 1) for item in items[:_ITEMS]]
        return ", ".join([*texts, f"… {len(items)} items"] if len(items) > _ITEMS else texts)


class HandledError(NamedTuple):
    """An exception that a thread handles. ``text``: ``ValueError('bad record')``; ``classes``: names of its class and
    the bases of that; ``errno`` or ``message``: its first argument, if that is a number or a str."""

    text: str
    classes: tuple[str, ...]
    errno: int | None
    message: str


def handled_error(runtime: PythonRuntime, state: ThreadState) -> HandledError | None:
    """The exception that a thread handles, in ``except`` or ``finally``; None for none, or if it cannot be read.
    PyThreadState.exc_info is the innermost of a linked list, whose ``exc_value`` is NULL or None if nothing is
    handled."""
    with suppress(GdbextError):
        item = PyThreadState(runtime.space, state.address).exc_info
        for _ in range(8):
            value = item.exc_value if item.address else 0
            text = exception_text(runtime, value)
            if text:
                return _handled(runtime, value, text)
            if not item.address:
                return None
            item = item.previous_item
    return None


def caught_error(runtime: PythonRuntime, frame: PythonFrame) -> HandledError | None:
    """The exception in a variable of the frame that the loop around its instruction caught in an earlier iteration: its
    traceback begins in that loop. None without one. Raises nothing."""
    with suppress(GdbextError):
        for value in locals_of(runtime, frame).values():
            text = exception_text(runtime, value)
            first = _first_of_traceback(runtime, value) if text else None
            if not first or codes_of_traceback(runtime, value)[:1] != [frame.code]:
                continue
            if is_in_loop_of(runtime, frame, first.tb_lasti):
                return _handled(runtime, value, text)
    return None


def _handled(runtime: PythonRuntime, address: int, text: str) -> HandledError:
    """The record of the exception at ``address`` whose text is ``text``. Raises GdbextError."""
    objects = runtime.objects
    kinds = base_classes(objects, objects.type_of(address).address)
    names = tuple(objects.type_info(kind).name.rpartition(".")[2] for kind in kinds)
    arguments = objects.tuple_items(runtime.memory.u64(address + _EXCEPTION_ARGS))
    flags = objects.type_of(arguments[0]).flags if arguments else 0
    number = objects.integer(arguments[0]) if flags & python_objects.FLAG_LONG else None
    message = objects.text(arguments[0]) if flags & python_objects.FLAG_UNICODE else ""
    return HandledError(text, names, number, message)


def exception_text(runtime: PythonRuntime, address: int) -> str:
    """``ValueError('bad record')`` for an exception, "" for anything else. PyBaseExceptionObject (Include/cpython/
    pyerrors.h, 3.8 to 3.15): the header, a dict, ``args``."""
    with suppress(GdbextError):
        info = runtime.objects.type_of(address) if address else None
        if info and info.flags & python_objects.FLAG_EXCEPTION:
            arguments = runtime.objects.tuple_items(runtime.memory.u64(address + _EXCEPTION_ARGS))
            return f"{info.name}({', '.join(describe(PyRef(runtime, each)) for each in arguments[:_ITEMS])})"
    return ""


def raised_in(runtime: PythonRuntime, exception: int) -> str:
    """``load (train.py:8)``: the function that raised an exception, with the line where it begins; "" if unknown."""
    codes = codes_of_traceback(runtime, exception)
    with suppress(GdbextError):
        if codes:
            code = runtime.codes.get(codes[-1])
            return f"{code.name} ({code.file.rpartition('/')[2]}:{code.first_line})"
    return ""


def codes_of_traceback(runtime: PythonRuntime, exception: int) -> list[int]:
    """Addresses of the code objects in the traceback of the exception at that address, outermost first; empty if they
    cannot be read. Raises nothing."""
    codes: list[int] = []
    with suppress(GdbextError):
        entry = _first_of_traceback(runtime, exception)
        form = runtime.layout.abi.frames
        while entry and len(codes) < 1000:
            frame = entry.tb_frame
            if isinstance(form, FrameObjects):
                codes.append(frame.f_code)
            else:
                code = PyInterpreterFrame(runtime.space, frame.f_frame).value(form.code)
                codes.append(code & ~form.tag_bits)
            entry = entry.tb_next if entry.tb_next.address else None
        return codes
    return []


def _first_of_traceback(runtime: PythonRuntime, exception: int) -> PyTracebackObject | None:
    """The outermost entry of an exception's traceback, which is behind dict, args and, since 3.11, notes
    (PyBaseExceptionObject); None if it has none. Raises GdbextError."""
    words = runtime.memory.words(exception + _EXCEPTION_ARGS + 8, 2)
    address = next((each for each in words if each and runtime.objects.type_of(each).name == "traceback"), 0)
    return PyTracebackObject(runtime.space, address) if address else None
