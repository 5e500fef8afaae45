"""Which threads have an object among the variables of their frames: who may put into a queue, set an event, …"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.cpython.threads.namespaces import Namespaces, attributes, variables

if TYPE_CHECKING:
    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.cpython.threads.thread_state import ThreadState

_FRAMES = 16
"""Innermost frames of each thread that are read."""
_THREADS = 300
"""Most threads that are read: a process with more has pools of equal ones."""


def object_users(runtime: PythonRuntime, states: Mapping[int, Sequence[ThreadState]]) -> dict[int, list[int]]:
    """Address of an object → tids of the threads that have it as a variable, or as an attribute of ``self``."""
    found: dict[int, list[int]] = {}
    known: Namespaces = {}
    for tid in list(states)[:_THREADS]:
        for address in set(_at_hand(runtime, states[tid], known)):
            found.setdefault(address, []).append(tid)
    return found


def _at_hand(runtime: PythonRuntime, states: Sequence[ThreadState], known: Namespaces) -> Iterator[int]:
    for state in states:
        for frame in runtime.frames.stack(state).frames[:_FRAMES]:
            own = variables(runtime, frame, known)
            yield from own.values()
            if "self" in own:
                yield from attributes(runtime, own["self"]).values()
