"""Runs looks in a process of its own, which a look may bring down: it costs no more than itself."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from support.programs import procfs

from . import folders
from .judge import judged
from .look import Kind, Result

SECONDS = 10.0
"""Of the processor's time: the machine may be busy with other things."""
MEGABYTES = 1024
"""By which the process may grow."""
HUNG_SECONDS = 60.0
"""On the clock: a look that sleeps or waits for so long is hung, and killed."""
_FORK = multiprocessing.get_context("fork")


class Worker:
    """A forked process that is told a kind and a seed at a time, and answers with the result."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self._kinds = kinds
        self._process: multiprocessing.process.BaseProcess | None = None

    def result(self, kind: str, seed: int) -> Result:
        """What came of the look; the process is started where there is none, and killed where it hangs."""
        if self._process is None:
            folders.everything()
            self._connection, theirs = _FORK.Pipe()
            self._process = _FORK.Process(target=_serve, args=(self._kinds, theirs), daemon=True)
            self._process.start()
            theirs.close()
        begin, what, how = time.monotonic(), "died", "its process ended"
        try:
            self._connection.send((kind, seed))
            while not self._connection.poll(1.0):
                if self._is_late(time.monotonic() - begin):
                    self._process.kill()
                    what, how = "hung", f"no answer in {HUNG_SECONDS:.0f} s"
                    break
            else:
                result: Result = self._connection.recv()
                return result
        except (EOFError, ConnectionError):
            pass
        self._process.join()
        failure = what, f"{how} (exit status {self._process.exitcode})"
        self._connection.close()
        self._process = None
        return Result(kind, seed, "", [failure], seconds=time.monotonic() - begin)

    def _is_late(self, seconds: float) -> bool:
        """The look takes longer than a look may; on a busy machine one that wants to run gets ten times as long."""
        pid = self._process.pid if self._process and self._process.pid else 0
        return seconds > 10 * HUNG_SECONDS or (seconds > HUNG_SECONDS and procfs.state(pid, pid) != "R")

    def end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ConnectionError):
                self._connection.send(None)
            self._process.join()
            self._connection.close()
            self._process = None


def _serve(kinds: Mapping[str, Kind], connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()
    folders.own_cache()
    with contextlib.suppress(EOFError):  # whoever asks was killed
        while (asked := connection.recv()) is not None:
            connection.send(run(kinds[asked[0]], asked[1]))
    for each in kinds.values():
        each.close()


def run(kind: Kind, seed: int, shrink: bool = False) -> Result:
    look = kind.look(seed)
    result = Result(kind.name, seed, look.title)
    peak, before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, _state()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # a look that wants more gets a MemoryError, and the machine stays usable
    resource.setrlimit(resource.RLIMIT_AS, (size + (MEGABYTES << 20) + (256 << 20), hard))
    try:
        judged(look, result, shrink)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    result.megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak >> 10
    if result.seconds > SECONDS:
        result.failures.append(("slow", f"{result.seconds:.1f} s of processor time"))
    if result.megabytes > MEGABYTES:
        result.failures.append(("memory", f"{result.megabytes} MB"))
    changed = [f"{name}: {before[name]} was, {now} is" for name, now in _state().items() if before[name] != now]
    if changed:
        result.failures.append(("left behind", "\n    ".join(changed)))
    return result


def _state() -> dict[str, object]:
    """What belongs to the whole process, and is as it was when a look is over: a library's user goes on with it."""
    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_CPU)
    return {
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "limits": [resource.getrlimit(limit) for limit in limits],
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "folder": str(Path.cwd()),
        "scheduling": (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)),
        "recursion": sys.getrecursionlimit(),
    }
