"""Which thread a user means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import UsageError
from gdbext.targets.base import Target, Thread

if TYPE_CHECKING:
    from gdbext.targets.live.running_process import RunningProcess


def find_thread(target: Target, word: str) -> Thread:
    """The thread with that number in the debugger, or that tid. Raises UsageError."""
    threads = target.threads()
    known = ", ".join(str(thread.tid) for thread in threads[:8]) + (" …" if len(threads) > 8 else "")
    try:
        number = int(word, 0)
    except ValueError:
        raise UsageError(f"{word!r} is neither a thread number nor a tid", help=f"tids are {known}") from None
    for thread in threads:
        if number in (thread.number, thread.tid):
            return thread
    raise UsageError(f"no thread {number} in the target", why="it may have ended", help=f"tids are {known}")


def running_thread(process: RunningProcess, word: str) -> int:
    """The tid of a thread of a process that nobody stops. Raises UsageError."""
    names = process.thread_names()
    if not word.isdecimal() or int(word) not in names:
        known = ", ".join(f"{tid} ({name})" for tid, name in sorted(names.items())[:20])
        raise UsageError(f"there is no thread {word!r}", help=f"name one by its thread id: {known}")
    return int(word)
