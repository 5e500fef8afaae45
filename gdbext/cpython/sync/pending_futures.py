"""The futures that ``concurrent.futures.wait`` or ``as_completed`` still waits for.

Source: Lib/concurrent/futures/_base.py, 3.8 to 3.15: both sleep on an event of their own and keep the futures in a set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.tasks.containers import set_items
from gdbext.cpython.threads.slots import locals_of
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime

_SETS = {"wait": "not_done", "as_completed": "pending"}
"""Function: the local variable with the futures that are not done."""
_FILE = "concurrent/futures/_base.py"
_STATE = "_state"
_NOT_DONE = ("PENDING", "RUNNING")
_LIMIT = 256


def pending_futures(runtime: PythonRuntime, frame: PythonFrame) -> tuple[int, ...]:
    """Addresses of the futures; empty where the frame is none of these functions, or they cannot be read."""
    name = _SETS.get(frame.function.rpartition(".")[2]) if frame.file.endswith(_FILE) else None
    if name is None:
        return ()
    try:
        container = locals_of(runtime, frame).get(name, 0)
        found = set_items(runtime, container)[:_LIMIT] if container else []
    except GdbextError:
        return ()
    return tuple(future for future in found if _is_pending(runtime, future))


def _is_pending(runtime: PythonRuntime, future: int) -> bool:
    try:
        state = runtime.dicts.attribute(future, _STATE)
        return state is not None and any(runtime.objects.text_equals(state, each) for each in _NOT_DONE)
    except GdbextError:
        return False
