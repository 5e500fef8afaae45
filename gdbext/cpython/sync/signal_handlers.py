"""Whether Python code of a thread was interrupted by a signal handler, by what the handler was called with.

A handler gets the signal's number and the frame that it interrupted (Modules/signalmodule.c), so that a function whose
arguments are a number and the frame object of its caller is one. That needs no names of C functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.cpython.abi.python_abi import FrameObjects
from gdbext.cpython.objects.objects import FLAG_LONG
from gdbext.cpython.threads.namespaces import items
from gdbext.cpython.threads.slots import locals_of
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.cpython.threads.thread_state import ThreadState

_ARGUMENTS = 3
"""A method has ``self`` before them."""
_FRAMES = 32
"""Innermost Python frames among which a handler is looked for."""


def in_signal_handler(runtime: PythonRuntime, state: ThreadState) -> bool:
    """One of the thread's innermost functions is a signal handler, or was called by one. Raises nothing."""
    frames = runtime.frames.stack(state).frames[:_FRAMES]
    return any(_has_frame_of(runtime, handler, caller) for handler, caller in zip(frames, frames[1:]))


def _has_frame_of(runtime: PythonRuntime, handler: PythonFrame, caller: PythonFrame) -> bool:
    try:
        arguments = list(_arguments(runtime, handler))
        pairs = zip(arguments, arguments[1:])
        return any(_is_object_of(runtime, value, caller) and _is_number(runtime, first) for first, value in pairs)
    except GdbextError:
        return False


def _arguments(runtime: PythonRuntime, frame: PythonFrame) -> Iterator[int]:
    """The first locals, which are the arguments, and what ``*arguments`` has collected."""
    for value in list(locals_of(runtime, frame).values())[:_ARGUMENTS]:
        yield value
        if runtime.objects.type_of(value).name == "tuple":
            yield from items(runtime, value)


def _is_number(runtime: PythonRuntime, address: int) -> bool:
    return runtime.objects.has_flag(address, FLAG_LONG)


def _is_object_of(runtime: PythonRuntime, address: int, frame: PythonFrame) -> bool:
    """It is the PyFrameObject of that frame (Include/internal/pycore_frame.h: f_frame, since 3.11)."""
    if runtime.objects.type_of(address).name != "frame":
        return False
    if isinstance(runtime.layout.abi.frames, FrameObjects):
        return address == frame.address
    return runtime.memory.u64(address + runtime.layout.offset("PyFrameObject", "f_frame")) == frame.address
