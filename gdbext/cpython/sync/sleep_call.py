"""How long Python code asked to sleep: the argument of the call of ``time.sleep`` that a frame's value stack still has.

Since 3.11 it sleeps until an absolute time (pysleep, Modules/timemodule.c), so that the system call alone does not say
how long without the system's clock, which a core does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.threads.slots import stack_slots
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime

_SLEEP = "sleep"


def asked_to_sleep(runtime: PythonRuntime, frame: PythonFrame) -> float | None:
    """Seconds in all; None where the frame does not call ``time.sleep``, or where more than one such call has left its
    argument on the stack. Raises nothing."""
    try:
        slots = stack_slots(runtime, frame)
        places = [number for number, slot in enumerate(slots[:-1]) if _is_sleep(runtime, slot)]
        return runtime.objects.number(slots[places[0] + 1]) if len(places) == 1 else None
    except GdbextError:
        return None


def _is_sleep(runtime: PythonRuntime, address: int) -> bool:
    found = runtime.functions.source(address)
    return found is not None and (found.kind, found.qualname) == ("builtin", _SLEEP)
