"""Coroutines that are suspended: their frames, and what the innermost one awaits.

A suspended coroutine keeps its frame (cr_frame, or cr_iframe inside of it: Include/cpython/genobject.h), and on top of
that frame's stack what it awaits (_PyGen_yf, Objects/genobject.c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi.python_abi import FrameObjects
from gdbext.cpython.abi.task_layout import FUTURE_ITERATOR_FUTURE
from gdbext.cpython.threads.python_frame import PythonFrame
from gdbext.cpython.threads.slots import objects_at, value_stack
from gdbext.errors import BadData, GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.runtime import PythonRuntime

_LONGEST = 100
"""Most coroutines of a chain that are read."""
_GENERATORS = ("coroutine", "generator", "async_generator")
_WRAPPERS = ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow")
"""Iterators around a coroutine or an asynchronous generator, which they keep behind their header."""


def coroutine_chain(runtime: PythonRuntime, coroutine: int) -> tuple[list[PythonFrame], int]:
    """The frames of a suspended coroutine and of those that it awaits, the innermost first, and the object that the
    innermost one awaits, 0 where that is not known. Raises nothing."""
    frames: list[PythonFrame] = []
    awaited = coroutine
    try:
        while len(frames) < _LONGEST:
            kind = runtime.objects.type_of(awaited).name
            if kind in _WRAPPERS:
                awaited = runtime.memory.u64(awaited + 16)
                continue
            if kind not in _GENERATORS:
                return frames[::-1], _future_of(runtime, awaited, kind)
            frame = _frame_of(runtime, awaited)
            if frame is None:
                break
            frames.append(frame)
            awaited = _awaited_by(runtime, frame)
    except GdbextError:
        pass  # what was read until then
    return frames[::-1], 0


def _future_of(runtime: PythonRuntime, address: int, kind: str) -> int:
    """The future behind the iterator that awaits it, or the object itself."""
    return runtime.memory.u64(address + FUTURE_ITERATOR_FUTURE) if kind == "_asyncio.FutureIter" else address


def _frame_of(runtime: PythonRuntime, coroutine: int) -> PythonFrame | None:
    """The frame of a coroutine; None for one that has ended. Raises MemoryFault, BadData."""
    layout, memory = runtime.layout, runtime.memory
    form = layout.abi.frames
    if isinstance(form, FrameObjects):
        address = memory.u64(coroutine + layout.offset("PyCoroObject", "cr_frame"))
        if not address:
            return None
        code = runtime.codes.get(memory.u64(address + layout.offset("PyFrameObject", "f_code")))
        at = memory.i32(address + layout.offset("PyFrameObject", "f_lasti")) * form.lasti_unit
    else:
        address = coroutine + layout.offset("PyCoroObject", "cr_iframe")
        word = memory.u64(address + layout.offset("_PyInterpreterFrame", form.code)) & ~form.tag_bits
        code = runtime.codes.get(word)
        at = code.offset_of(memory.u64(address + layout.offset("_PyInterpreterFrame", form.instruction)))
    return PythonFrame(code.name, code.file, code.line(at), address, code.address)


def _awaited_by(runtime: PythonRuntime, frame: PythonFrame) -> int:
    """The object that a suspended frame awaits, on top of its stack. Raises MemoryFault, BadData."""
    layout, memory, form = runtime.layout, runtime.memory, runtime.layout.abi.frames
    stack, below = value_stack(runtime, frame), 1
    if isinstance(form, FrameObjects):
        if layout.find("PyFrameObject", "f_stacktop") is not None:
            top = memory.u64(frame.address + layout.offset("PyFrameObject", "f_stacktop"))
            depth = (top - stack) // 8
        else:
            depth = memory.i32(frame.address + layout.offset("PyFrameObject", "f_stackdepth"))
        start = stack
    elif layout.find("_PyInterpreterFrame", "stacktop") is not None:
        depth = memory.i32(frame.address + layout.offset("_PyInterpreterFrame", "stacktop"))
        start = frame.address + layout.offset("_PyInterpreterFrame", "localsplus")
    elif layout.find("_PyInterpreterFrame", "stackpointer") is not None:
        top = memory.u64(frame.address + layout.offset("_PyInterpreterFrame", "stackpointer"))
        start = stack
        depth, below = (top - stack) // 8, form.awaited_slot
    else:
        raise BadData("where the stack of a suspended frame ends is not known in this version")
    if not below <= depth < 10_000:
        raise BadData(f"the stack of the frame at {frame.address:#x} has {depth} entries")
    return objects_at(runtime, start + 8 * (depth - below), 1)[0]
