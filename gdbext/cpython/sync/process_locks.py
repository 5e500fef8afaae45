"""Locks of multiprocessing: which object a semaphore that is shared between processes belongs to.

A semaphore keeps no owner, and not what it was made with. That of a Lock or an RLock had one token, and that of a
BoundedSemaphore as many as it may have: whoever waits for one waits for somebody who took it. Those of an Event, a
Condition, a Barrier or a JoinableQueue were made with 0, and nobody ever took them; of a Semaphore it cannot be known.

SemLockObject (Modules/_multiprocessing/semaphore.c, 3.8 to 3.15): the head, handle, last_tid (8 bytes each), count,
maxvalue, kind (4 each).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from gdbext.cpython.threads.frame_variables import attributes, locals_of, stack_slots
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

_TYPE = "_multiprocessing.SemLock"
_METHOD = "builtin_function_or_method"
_COUNT, _MAX_VALUE = 16, 20
"""Offsets from ``handle`` to ``count``, how often this process has taken it, and to ``maxvalue``."""
_SEM_VALUE_MAX = 0x7FFF_FFFF
"""The ``maxvalue`` that SemLock gets for a Semaphore, however many tokens that has (synchronize.py)."""
_DEPTH = 3
"""Innermost frames: the method of the object, and who called it."""


def is_taken_by_somebody(runtime: PythonRuntime, state: ThreadState, semaphore: int) -> bool:
    """The thread waits for a lock of multiprocessing that has this semaphore, was made with all of its tokens, and is
    not one that this very process has taken. Raises nothing."""
    frames = runtime.frames.stack(state).frames[:_DEPTH]
    for value in chain.from_iterable(_values(runtime, frame) for frame in frames):
        found = _count_and_limit(runtime, value, semaphore)
        if found is not None:
            return not found[0] and found[1] != _SEM_VALUE_MAX
    return False


def _values(runtime: PythonRuntime, frame: PythonFrame) -> Iterator[int]:
    """The objects that the frame has at hand: its value stack, its variables, and what ``self`` has."""
    try:
        yield from stack_slots(runtime, frame)
        variables = locals_of(runtime, frame)
        yield from variables.values()
        yield from attributes(runtime, variables.get("self", 0)).values()
    except GdbextError:
        return


def _count_and_limit(runtime: PythonRuntime, value: int, semaphore: int) -> tuple[int, int] | None:
    """The number of times that this process has taken a SemLock, or the one whose method it is, and how many tokens
    that may have; None for anything else."""
    layout, memory = runtime.layout, runtime.memory
    try:
        kind = runtime.objects.type_of(value).name
        if kind == _METHOD:
            value = memory.u64(value + layout.offset("PyCFunctionObject", "m_ml") + 8)  # m_self
            kind = runtime.objects.type_of(value).name if value else ""
        if kind != _TYPE:
            return None
        handle = value + layout.offset("PyVarObject", "ob_size")
        if memory.u64(handle) != semaphore:
            return None
        return memory.u32(handle + _COUNT), memory.u32(handle + _MAX_VALUE)
    except GdbextError:
        return None
