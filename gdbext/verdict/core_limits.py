"""What a core cannot tell of the waits in it: descriptors, processes, files and clocks are known to the system alone,
while the process lives. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gdbext.model.threads.thread_report import RunState, ThreadReport
from gdbext.model.threads.wait import Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.verdict import phrasing


def unknown_in_core(threads: Sequence[ThreadReport]) -> list[str]:
    """What is missing because it is a core, each with the threads whose waits it would explain; empty where nothing
    is."""
    waiting = [thread for thread in threads if thread.wait is not None and thread.state is not RunState.IDLE]
    found = []
    for concerns, what in _LIMITS:
        concerned = [thread for thread in waiting if thread.wait is not None and concerns(thread.wait)]
        if concerned:
            found.append(f"{what}, for {phrasing.listed([thread.label for thread in concerned])}")
    found += _children(waiting)
    if len(threads) == 1 and any(thread.wait is not None and _may_come_of_fork(thread.wait) for thread in waiting):
        found.append("whether the process was forked from another one, whose threads it lacks")
    return found


def _children(waiting: Sequence[ThreadReport]) -> Iterator[str]:
    waits = [thread.wait for thread in waiting if thread.wait is not None]
    pids = sorted({child.pid for wait in waits for child in wait.children})
    if pids:
        names = phrasing.listed([str(pid) for pid in pids])
        yield f"what process{'es' if len(pids) > 1 else ''} {names} do{'' if len(pids) > 1 else 'es'}"
    if any(wait.kind is WaitKind.CHILD_PROCESS and not wait.children for wait in waits):
        yield "which child processes there are, and what they do"


def _is_on_descriptors(wait: Wait) -> bool:
    return wait.kind is WaitKind.IO


def _looks_at_files(wait: Wait) -> bool:
    return wait.looks_outside


def _has_unknown_end(wait: Wait) -> bool:
    return wait.kind is WaitKind.SLEEP and wait.timed and wait.seconds is None


def _is_shared(wait: Wait) -> bool:
    return wait.external and wait.kind.traits.needs_thread


def _may_come_of_fork(wait: Wait) -> bool:
    lacks_workers = wait.missing is not None and not wait.missing.forked
    return lacks_workers or (wait.kind.traits.is_lock and not wait.owners and not wait.handover)


def _is_for_store(wait: Wait) -> bool:
    return wait.collective is not None and wait.collective.is_store and not wait.collective.server


_LIMITS: tuple[tuple[Callable[[Wait], bool], str], ...] = (
    (_is_on_descriptors, "what file descriptors refer to and which process is at their other end"),
    (_is_for_store, "where the store is"),
    (_looks_at_files, "whether files exist and who has locked them"),
    (_is_shared, "which other processes share the memory that is waited on"),
    (_has_unknown_end, "how long a sleep still lasts"),
)
