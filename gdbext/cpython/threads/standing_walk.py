"""Thread states, frames and GILs of a process that runs, read while it stands still for a moment.

What running threads do to these lists cannot be read a millisecond later: threads come and go, and the frames of a
moment are overwritten by others. So the interpreter is found, and the code of its functions read, before the process
is stopped; at the stop its lists are walked, innermost frames first, for some milliseconds at most. Every page that is
read then belongs to the copy, and whoever reads it later reads that moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from gdbext.cpython.sync.locks import touch_gils
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.base_target import Target
from gdbext.errors import GdbextError

_SECONDS = 0.015
"""Seconds that the process stands still longer for it, at most."""
_TRIES = 3
"""Attempts to find an interpreter: the lists that prove it may be torn."""


def prepare_walk(target: Target, modules: ModuleTable, symbolizer: Symbolizer) -> Callable[[], None] | None:
    """The walk to be made at the stop; None without a Python. Raises nothing but TargetGone."""
    memory = Memory(target)
    runtime = _found(memory, modules, symbolizer)
    if runtime is None:
        return None
    found = runtime
    with suppress(GdbextError):
        _walk(found, time.monotonic() + 10 * _SECONDS)  # so that the code of most functions is known then

    def walk() -> None:
        memory.forget()
        with suppress(GdbextError):
            _walk(found.anew(), time.monotonic() + _SECONDS)

    return walk


def _found(memory: Memory, modules: ModuleTable, symbolizer: Symbolizer) -> PythonRuntime | None:
    for _ in range(_TRIES):
        with suppress(GdbextError):
            return PythonRuntime.detect(memory, modules, symbolizer)
        memory.forget()
    return None


def _walk(runtime: PythonRuntime, deadline: float) -> None:
    """Read what the threads do. Raises GdbextError."""
    runtime.sys_hexversion()
    touch_gils(runtime)
    for state in runtime.thread_states():
        runtime.frames.stack(state)
        if time.monotonic() > deadline:
            return
