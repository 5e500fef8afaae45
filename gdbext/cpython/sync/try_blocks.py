"""Which locks a thread seems to hold by ``lock.acquire()`` and ``try: … finally: lock.release()``.

Nothing on a frame's stack shows that. But code that names both calls, has the lock at hand, and is inside a ``try``
block, has most likely taken the lock on its way there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.cpython.sync.locks import LockState, read_lock
from gdbext.cpython.sync.with_blocks import is_protected
from gdbext.cpython.threads.namespaces import attributes, used_names, variables
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.cpython.threads.thread_state import ThreadState

_FRAMES = 64
"""Innermost Python frames that are read."""
_CALLS = frozenset({"acquire", "release"})


def seemingly_held(runtime: PythonRuntime, state: ThreadState) -> Iterator[tuple[int, LockState]]:
    """Locks that are taken, and that frames of this kind have at hand, each with the number of its frame: 0 is the
    innermost one, which may as well be about to take the lock. Raises nothing."""
    for number, frame in enumerate(runtime.frames.stack(state).frames[:_FRAMES]):
        try:
            if not used_names(runtime, frame) >= _CALLS or not is_protected(runtime, frame):
                continue
        except GdbextError:
            continue
        for address in _at_hand(runtime, frame):
            lock = read_lock(runtime, address)
            if lock is not None and lock.locked:
                yield number, lock


def _at_hand(runtime: PythonRuntime, frame: PythonFrame) -> set[int]:
    own = variables(runtime, frame)
    inner = attributes(runtime, own["self"]).values() if "self" in own else ()
    return {*own.values(), *inner}
