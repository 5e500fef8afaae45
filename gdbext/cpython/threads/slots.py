"""What a Python frame holds: its local variables by name, and the slots of its value stack.

f_localsplus (frameobject.h) and localsplus (pycore_frame.h): first the fast locals, cells and free variables, then
the value stack of at most co_stacksize slots.
"""

from __future__ import annotations

from gdbext.cpython.threads.python_frames import PythonFrame
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import GdbextError

_LOCALS_LIMIT = 10_000
_STACK_LIMIT = 1_000


def locals_of(runtime: PythonRuntime, frame: PythonFrame) -> dict[str, int]:
    """Fast locals that are set, by name: address of the object; cells are opened. Raises MemoryFault, BadData.

    Globals and the variables of class bodies and exec() are not fast locals.
    """
    names = runtime.codes.get(frame.code).local_names()[:_LOCALS_LIMIT]
    values = runtime.memory.words(_slots_of(runtime, frame), len(names)) if names else ()
    found = ((name, _open_cell(runtime, value)) for name, value in zip(names, values) if value)
    return {name: value for name, value in found if value}


def stack_slots(runtime: PythonRuntime, frame: PythonFrame) -> tuple[int, ...]:
    """All non-zero words of the value stack, also above its top: what is used and what is left over cannot be told
    apart while C code runs, so whoever asks must prove what he finds. Raises MemoryFault, BadData."""
    memory, offset = runtime.memory, runtime.layout.offset
    size = memory.u32(frame.code + offset("PyCodeObject", "co_stacksize"))
    if runtime.minor >= (3, 11):
        used = memory.u32(frame.code + offset("PyCodeObject", "co_nlocalsplus"))
        start = _slots_of(runtime, frame) + 8 * used
    else:
        start = memory.u64(frame.address + offset("PyFrameObject", "f_valuestack"))
    return tuple(word for word in memory.words(start, min(size, _STACK_LIMIT)) if word)


def _slots_of(runtime: PythonRuntime, frame: PythonFrame) -> int:
    if runtime.minor >= (3, 11):
        return frame.address + runtime.layout.offset("_PyInterpreterFrame", "localsplus")
    return frame.address + runtime.layout.offset("PyFrameObject", "f_localsplus")


def _open_cell(runtime: PythonRuntime, address: int) -> int:
    try:
        if runtime.objects.type_of(address).name == "cell":
            return runtime.memory.u64(address + runtime.layout.offset("PyCellObject", "ob_ref"))
    except GdbextError:
        pass  # shown as it is: whoever looks at it will find out what is wrong with it
    return address
