"""Waits for a one-time initialisation (pthread_once, and std::call_once, which is built on it), and who runs it.

The control word (nptl/pthread_once.c, glibc 2.25 to 2.41): bit 0 in progress, bit 1 done, above them the fork
generation. It records no owner: the thread that runs the initialiser has a frame of libc that holds the word's
address and has called the initialiser through a pointer.
"""

from __future__ import annotations

from gdbext.model.certainty import Certainty
from gdbext.model.wait import Owner, Resource, Wait
from gdbext.model.wait_kind import WaitKind
from gdbext.waits.futex import FutexWait
from gdbext.waits.snapshot import ThreadSnapshot

_DEEP = 200
"""Frames of a thread that are searched for a running initialiser."""
_LONGEST_CALL = 7
"""Bytes of ``call *disp32(%r12)``."""
_CALL_LENGTHS = {0: 2, 1: 3, 2: 6, 3: 2}
"""Bytes of ``call *operand`` by the mod field of its operand, without REX prefix and SIB byte."""


def classify(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """The wait of a thread for an initialisation that is in progress, None for any other."""
    if thread.first("once", within=4) is None and not _is_once_word(thread, futex):
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
    if futex.command != 0 or futex.timed or futex.value & 3 != 1 or futex.value > 1 << 20:
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
    """The frame's return address follows ``call *operand`` (FF /2, Intel SDM volume 2, CALL)."""
    pc = other.frames[level].pc
    code = other.process.memory.try_read(pc - _LONGEST_CALL, _LONGEST_CALL)
    for size in range(2, _LONGEST_CALL + 1) if code is not None else ():
        call = code[-size:] if code is not None else b""
        call = call[1:] if call[0] == 0x41 and size > 2 else call
        if call[0] == 0xFF and call[1] >> 3 & 7 == 2 and len(call) == _length(call[1]):
            return True
    return False


def _length(modrm: int) -> int:
    mod, rm = modrm >> 6, modrm & 7
    if mod == 0 and rm == 5:
        return 6
    return _CALL_LENGTHS[mod] + (mod != 3 and rm == 4)
