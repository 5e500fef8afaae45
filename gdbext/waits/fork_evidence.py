"""Whether the process was forked from another one without exec: only then do threads vanish while their locks stay.

That a thread is missing says nothing by itself, so a fork is stated only where something in this process, or in its
parent, shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdbext.waits.snapshot import ProcessSnapshot

_FORKING_FILES = ("/multiprocessing/popen_fork.py", "/multiprocessing/forkserver.py")
"""Sources whose frames stand at the bottom of a child's stack: Popen._launch and main call os.fork()."""


def fork_evidence(process: ProcessSnapshot) -> tuple[str, ...]:
    """What shows that the process was forked, the best first; empty where nothing does."""
    if process.fork_evidence is None:
        process.fork_evidence = tuple(_evidence(process))
    return process.fork_evidence


def _evidence(process: ProcessSnapshot) -> Iterator[str]:
    parent = process.outside.forked_from() if process.outside is not None else None
    if parent is not None:
        yield f"its code, stack and heap are where those of its parent process {parent} are: it was forked from it"
    if process.python is not None:
        own = {thread.tid: thread.own_tid for thread in process.threads}
        for tid, native in process.python.native_ids().items():
            if own.get(tid) not in (None, native):
                yield f"threading recorded thread {tid} as the kernel's thread {native}, before a fork"
    for thread in process.threads:
        if any(frame.file.endswith(_FORKING_FILES) for frame in thread.python):
            yield "multiprocessing's call of fork is on its stack"
