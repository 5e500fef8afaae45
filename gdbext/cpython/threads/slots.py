"""What a Python frame holds: its local variables by name, and the slots of its value stack.

f_localsplus (frameobject.h) and localsplus (pycore_frame.h): first the fast locals, cells and free variables, then
the value stack of at most co_stacksize slots.
"""

from __future__ import annotations

from gdbext.cpython.abi.python_abi import FrameObjects, InterpreterFrames
from gdbext.cpython.threads.python_frame import PythonFrame
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import GdbextError

_LOCALS_LIMIT = 10_000
_STACK_LIMIT = 1_000


def locals_of(runtime: PythonRuntime, frame: PythonFrame) -> dict[str, int]:
    """Fast locals that are set, by name: address of the object; cells are opened. Raises MemoryFault, BadData.

    Globals and the variables of class bodies and exec() are not fast locals.
    """
    names = runtime.codes.get(frame.code).local_names()[:_LOCALS_LIMIT]
    values = objects_at(runtime, slots_of(runtime, frame), len(names))
    found = ((name, _open_cell(runtime, value)) for name, value in zip(names, values) if value)
    return {name: value for name, value in found if value}


def local_of(runtime: PythonRuntime, frame: PythonFrame, name: str) -> int:
    """Address of one fast local; 0 where it is not set or nothing can be read."""
    try:
        return locals_of(runtime, frame).get(name, 0)
    except GdbextError:
        return 0


def namespace_of(runtime: PythonRuntime, frame: PythonFrame, field: str = "f_globals") -> int:
    """Address of the dict of the frame's global variables, or of ``f_locals``. Raises MemoryFault, LayoutError."""
    struct = "PyFrameObject" if isinstance(runtime.layout.abi.frames, FrameObjects) else "_PyInterpreterFrame"
    return runtime.memory.u64(frame.address + runtime.layout.offset(struct, field))


def stack_slots(runtime: PythonRuntime, frame: PythonFrame) -> tuple[int, ...]:
    """All objects on the value stack, also above its top: what is used and what is left over cannot be
    distinguished while C code runs, so whoever asks must prove what he finds. Raises MemoryFault, BadData."""
    size = runtime.memory.u32(frame.code + runtime.layout.offset("PyCodeObject", "co_stacksize"))
    words = objects_at(runtime, value_stack(runtime, frame), min(size, _STACK_LIMIT))
    return tuple(word for word in words if word)


def objects_at(runtime: PythonRuntime, address: int, count: int) -> tuple[int, ...]:
    """The objects that ``count`` slots of a frame refer to; 0 for an empty slot, and for a number that stands in the
    slot itself. Raises MemoryFault."""
    words = runtime.memory.words(address, count) if count else ()
    form = runtime.layout.abi.frames
    tag_bits = form.tag_bits if isinstance(form, InterpreterFrames) else 0
    if not tag_bits:
        return words
    return tuple(0 if word & tag_bits == tag_bits else word & ~tag_bits for word in words)


def value_stack(runtime: PythonRuntime, frame: PythonFrame) -> int:
    """Address of the first slot of the value stack. Raises MemoryFault."""
    memory, offset = runtime.memory, runtime.layout.offset
    if isinstance(runtime.layout.abi.frames, FrameObjects):
        return memory.u64(frame.address + offset("PyFrameObject", "f_valuestack"))
    return slots_of(runtime, frame) + 8 * memory.u32(frame.code + offset("PyCodeObject", "co_nlocalsplus"))


def instruction(runtime: PythonRuntime, frame: PythonFrame) -> int:
    """Where in its code the frame is: f_lasti, or the address of an instruction; 0 where it cannot be read."""
    form, offset = runtime.layout.abi.frames, runtime.layout.offset
    try:
        if isinstance(form, FrameObjects):
            return runtime.memory.u32(frame.address + offset("PyFrameObject", "f_lasti"))
        return runtime.memory.u64(frame.address + offset("_PyInterpreterFrame", form.instruction))
    except GdbextError:
        return 0


def slots_of(runtime: PythonRuntime, frame: PythonFrame) -> int:
    """Address of the first fast local."""
    if isinstance(runtime.layout.abi.frames, FrameObjects):
        return frame.address + runtime.layout.offset("PyFrameObject", "f_localsplus")
    return frame.address + runtime.layout.offset("_PyInterpreterFrame", "localsplus")


def _open_cell(runtime: PythonRuntime, address: int) -> int:
    try:
        if runtime.objects.type_of(address).name == "cell":
            return runtime.memory.u64(address + runtime.layout.offset("PyCellObject", "ob_ref"))
    except GdbextError:
        pass  # shown as it is: whoever looks at it will find out what is wrong with it
    return address
