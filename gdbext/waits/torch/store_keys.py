"""Which key of a c10d store a thread waits for, and at which server: from the frames of the store's client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdbext.waits.snapshot import ThreadSnapshot

_LONGEST = 512
_FRAMES = 3
"""Frames from the one that waits in which the key stands: doWait, doGet, get."""
_COUNTERS = "pytorch.wait_counter."
"""Names of counters, which stand in these frames, too (c10/util/WaitCounter.h)."""
_LOWEST = 0x10000


def key_of(thread: ThreadSnapshot, level: int) -> str:
    """The key: the text that these frames hold most often as a std::string; "" without one."""
    found: Counter[str] = Counter()
    for at in range(level, min(level + _FRAMES, len(thread.frames))):
        found.update(text for text in _strings(thread, at) if not text.startswith(_COUNTERS))
    return found.most_common(1)[0][0] if found else ""


def server_of(thread: ThreadSnapshot) -> str:
    """``127.0.0.1:29500``: the other end of the socket that the thread polls; "" where that is not known."""
    from gdbext.waits import syscall_waits

    wait = syscall_waits.classify(thread)
    return wait.peer.address if wait is not None and wait.peer is not None else ""


def _strings(thread: ThreadSnapshot, level: int) -> Iterator[str]:
    """The texts of all std::string that a frame has a pointer to: pointer and length, then up to 15 characters in place
    (basic_string.h of libstdc++, the ABI of C++11), ended by a 0."""
    memory, limit = thread.process.memory, thread.process.memory.architecture.user_limit
    for value in thread.values(level):
        head = memory.try_read(value, 16) if _LOWEST <= value < limit else None
        if head is None:
            continue
        start, size = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little")
        if not 0 < size <= _LONGEST or not _LOWEST <= start < limit or (size < 16) != (start == value + 16):
            continue
        raw = memory.try_read(start, size + 1)
        if raw is not None and not raw[-1] and raw[:-1].isascii() and raw[:-1].decode("ascii").isprintable():
            yield raw[:-1].decode("ascii")
