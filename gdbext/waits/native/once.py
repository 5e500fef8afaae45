"""Waits for a one-time initialisation (pthread_once, and std::call_once, which is built on it), and who runs it.

The control word records no owner: the thread that runs the initialiser has a frame of libc that holds the word's
address and has called the initialiser through a pointer.
"""

from __future__ import annotations

from gdbext.glibc.sync_objects import ONCE_IN_PROGRESS, ONCE_STATE
from gdbext.model.certainty import Certainty
from gdbext.model.threads.wait import Owner, Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.futex import FutexWait, futex_wait
from gdbext.waits.snapshot import ThreadSnapshot

_NEAR = 4
_DEEP = 200
"""Frames of a thread that are searched for a running initialiser."""
_CALL_BYTES = 8
"""Bytes of code before a return address that are searched for a call instruction."""


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for an initialisation that is in progress, None for any other."""
    futex = futex_wait(thread.syscall)
    if futex is None or (thread.first(FunctionTag.ONCE, within=_NEAR) is None and not _is_once_word(thread, futex)):
        return None
    resource = Resource(WaitKind.ONCE, futex.address, thread.process.name_at(futex.address))
    owners = [Owner(other.tid) for other in thread.process.threads if _runs_initialiser(other, futex.address)]
    if len(owners) != 1:
        return Wait(resource, evidence=(f"once control {futex.address:#x}: in progress",))
    where = f"a libc frame of thread {owners[0].tid} that called out of libc"
    evidence = f"once control {futex.address:#x} is in {where}"
    return Wait(resource, owners[0], Certainty.INFERRED, evidence=(evidence,))


def _is_once_word(thread: ThreadSnapshot, futex: FutexWait) -> bool:
    """__pthread_once_slow is local and has no name on a stripped libc: value 1 (in progress, with the fork
    generation above), waited for untimed in libc, directly called by code outside of libc."""
    if futex.command != 0 or futex.timed or futex.value & ONCE_STATE != ONCE_IN_PROGRESS or futex.value > 1 << 20:
        return False
    levels = thread.inner_libc_levels
    unnamed = all(thread.stack.function(level) is None for level in levels)
    return 1 <= len(levels) <= 3 and unnamed and thread.mentions(futex.address, levels)


def _runs_initialiser(other: ThreadSnapshot, control: int) -> bool:
    """A frame of libc that holds the control word and has called the initialiser, which may itself be inside libc
    (where it ended in a jump to it)."""
    for level in range(1, min(len(other.frames), _DEEP)):
        if not other.in_libc(level) or not other.mentions(control, (level,)):
            continue
        if not other.in_libc(level - 1) or _after_indirect_call(other, level):
            return True
    return False


def _after_indirect_call(other: ThreadSnapshot, level: int) -> bool:
    """The frame's return address follows a call through a pointer."""
    memory, pc = other.process.memory, other.frames[level].pc
    return memory.architecture.follows_call_by_pointer(memory.try_read(pc - _CALL_BYTES, _CALL_BYTES) or b"")
