"""Which thread a user means."""

from __future__ import annotations

from gdbext.errors import UsageError
from gdbext.targets.base import Target, Thread


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
