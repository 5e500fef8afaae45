"""Runs looks in a process of its own, which a look may bring down: it costs no more than itself."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

from support.programs import procfs
from support.programs.harness import HarnessError, wait_until

from . import folders
from .judge import judged
from .look import Kind, Result

SECONDS = 10.0
"""Of the processor's time: the machine may be busy with other things."""
MEGABYTES = 1024
"""By which the process may grow."""
HUNG_SECONDS = 60.0
"""On the clock: a look that sleeps or waits for so long is hung, and killed."""


class Worker:
    """A forked process that is told ``KIND:SEED`` a line, and answers a result a line."""

    _ends: ClassVar[set[int]] = set()
    """Our ends of all pipes: a worker that kept a copy of another's would keep that one from its end of file."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self._kinds = kinds
        self._pid = 0
        self._commands = self._answers = -1
        self._buffer = b""
        self._asked: tuple[str, int] | None = None
        self._since = 0.0
        self._trace = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as we are
        """Where a look that hangs says what it is at."""

    def fileno(self) -> int:
        """What becomes readable with an answer."""
        return self._answers

    def ask(self, kind: str, seed: int) -> None:
        """Have a look run; the process is started where there is none."""
        if not self._pid:
            folders.prepare()
            self._start()
        self._asked, self._since = (kind, seed), time.monotonic()
        os.write(self._commands, f"{kind}:{seed}\n".encode())

    @property
    def is_late(self) -> bool:
        """The look takes longer than a look may; on a busy machine one that wants to run gets ten times as long."""
        took = time.monotonic() - self._since
        wants_to_run = took < 10 * HUNG_SECONDS and procfs.state(self._pid, self._pid) == "R" if self._asked else False
        return self._asked is not None and took > HUNG_SECONDS and not wants_to_run

    def answer(self) -> Result | None:
        """What came of the look; None as long as the answer is not complete. Call it when ``fileno`` is readable."""
        data = os.read(self._answers, 1 << 16)
        self._buffer += data
        if not data:
            return self._lost()
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer, self._asked = rest, None
        return Result(**json.loads(line))

    def give_up(self) -> Result:
        """The result of a look that hangs: its process is killed."""
        os.kill(self._pid, signal.SIGUSR1)
        with contextlib.suppress(HarnessError):  # in vain where the kernel keeps it
            wait_until(self._has_told, "it has said where it is", 10)
        os.kill(self._pid, signal.SIGKILL)
        self._trace.seek(0)
        return self._ended("hung", f"no answer in {HUNG_SECONDS:.0f} s\n{self._trace.read()}")

    def _has_told(self) -> bool:
        self._trace.seek(0)
        return self._trace.read().endswith("\n")

    def end(self) -> None:
        """End the process; idempotent."""
        if self._pid:
            self._close()
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _close(self) -> None:
        for end in (self._commands, self._answers):
            self._ends.discard(end)
            os.close(end)

    def _lost(self) -> Result:
        self._trace.seek(0)
        return self._ended("died", f"its process ended\n{self._trace.read()}")

    def _ended(self, what: str, how: str) -> Result:
        kind, seed = self._asked or ("", 0)
        self._close()
        status = os.waitpid(self._pid, 0)[1]
        self._pid, self._buffer, self._asked = 0, b"", None
        took = time.monotonic() - self._since
        return Result(kind, seed, "", [(what, f"{how} (wait status {status:#x})")], seconds=took)

    def _start(self) -> None:
        commands, told = os.pipe()
        answers, said = os.pipe()
        self._trace.truncate(0)
        self._pid = os.fork()
        if not self._pid:
            status = 1
            try:
                for end in (told, answers, *self._ends):
                    os.close(end)
                faulthandler.register(signal.SIGUSR1, self._trace)
                _serve(self._kinds, commands, said)
                status = 0
            except BaseException as error:
                self._trace.write("".join(traceback.format_exception(error)))
                self._trace.flush()
            finally:
                os._exit(status)
        os.close(commands)
        os.close(said)
        self._commands, self._answers = told, answers
        self._ends.update((told, answers))


def _serve(kinds: Mapping[str, Kind], commands: int, answers: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    folders.own_cache()
    with os.fdopen(commands) as lines:
        for line in lines:
            kind, _, seed = line.strip().rpartition(":")
            result = run(kinds[kind], int(seed))
            os.write(answers, json.dumps(asdict(result)).encode() + b"\n")
    for each in kinds.values():
        each.close()


def run(kind: Kind, seed: int, shrink: bool = False) -> Result:
    """The result of a look, with what it cost."""
    look = kind.look(seed)
    result = Result(kind.name, seed, look.title)
    peak, before = _megabytes(), _state()
    _limit_memory()
    try:
        judged(look, result, shrink)
    finally:
        _limit_memory(lift=True)
    result.megabytes = max(0, _megabytes() - peak)
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


def _megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _limit_memory(lift: bool = False) -> None:
    """A look that wants more gets a MemoryError, and the machine stays usable."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if lift:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        return
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (MEGABYTES << 20) + (256 << 20), hard))


def wait_for(workers: list[Worker], seconds: float) -> list[Worker]:
    """Those that have something to say."""
    return select.select(workers, [], [], seconds)[0]
