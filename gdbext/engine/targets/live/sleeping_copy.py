"""A copy of one moment of a process that nobody stops: all of its threads sleep before it is made, and afterwards none
has had a turn.

What proves it is /proc/PID/task: the state of each thread, the system call that it sleeps in with its arguments and
stack pointer, and how often and how long it has run (thread_motion.py). A thread that ran in between, however briefly,
has had one turn more; then it is tried again, and in the end the process is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing

from gdbext.engine.targets.live.stop_copy import CopiedThread, PageCopy, Piece, StopCopy
from gdbext.engine.targets.live.unstopped import UnstoppedProcess

_TRIES = 4
_PAUSE = 0.001
"""Seconds after the first try; each further one is given twice as long: many threads that wait wake at times, only to
look whether they should wait on."""

CopyStacks = Callable[[Sequence[int]], Sequence[tuple[int, Piece]]]
"""Copies the stacks that end at these addresses, and whatever else is wanted, as addresses and bytes."""


def copy_asleep(unstopped: Callable[[], UnstoppedProcess], copy: CopyStacks) -> StopCopy | None:
    """The copy, None unless all threads sleep for as long as it takes. Raises TargetGone."""
    for number in range(_TRIES):
        with closing(unstopped()) as process:
            found = _copied(process, copy)
        if found is not None:
            return found
        time.sleep(_PAUSE * 2**number)
    return None


def _copied(process: UnstoppedProcess, copy: CopyStacks) -> StopCopy | None:
    if not process.is_asleep():
        return None
    pieces = copy([place.stack_pointer or 0 for place in process.places.values()])
    if not process.has_slept_on():
        return None
    threads = [CopiedThread(process.pid, each) for each in process.threads()]
    pointer = process.architecture.thread_pointer
    if not all(pointer(each.registers()) for each in threads):
        return None  # only a stop tells where such a thread has its control block
    return StopCopy(process.pid, threads, PageCopy(pieces), process.pid, process.places)
