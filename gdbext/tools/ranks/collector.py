"""Reports of many processes of this machine at once, made by a few processes of our own.

Modules are imported once, before they are forked; ptrace's rule that one thread does everything holds; and a target
that hangs the look costs its own time limit. Killing a worker lets its target go: the kernel ends ptrace with the
tracer.

Which ranks have run on since they were looked at: one after the other is looked at, and a job that runs looks late.

A rank that waited when it was looked at, and whose main thread has slept since before the first look until after the
last one, does hang there as far as can be seen. Where it has run, it is looked at once more.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple

from gdbext.engine.arch import architectures
from gdbext.engine.formats import MAX_BYTES
from gdbext.engine.targets.budget import MEMORY, MemoryLimit
from gdbext.engine.targets.live.proc_checks import living_threads
from gdbext.engine.targets.live.thread_motion import place_of
from gdbext.errors import ForeignArchitecture
from gdbext.tools.ranks.job_report import GroupState, RankReport


class ProgressOfRanks:
    """The progress of ranks' threads since before the first of them was looked at.

    From before the looks, not from their ends: what moves between the moment that a report shows and its arrival here
    has left that moment, too. A look that had to stop somebody moves him; he is looked at once more for nothing.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._places = {(pid, tid): place_of(pid, tid) for pid in pids for tid in _threads(pid)}

    def that_ran(self, reports: Iterable[RankReport]) -> list[RankReport]:
        """Those that waited for others and have run since, or are about to."""
        return [each for each in reports if each.wait and self._has_moved(each.pid, each.thread)]

    def _has_moved(self, pid: int, thread: int | None) -> bool:
        tid = thread or pid
        before = self._places.get((pid, tid))
        if not before:  # of another machine, or a thread that has begun since
            return (pid, pid) in self._places
        return place_of(pid, tid).has_moved(before)


def _threads(pid: int) -> list[int]:
    """The main thread and others, as many as are looked at."""
    return [pid, *sorted(living_threads(pid) - {pid})[:_THREADS]]


def is_settled(reports: Sequence[RankReport]) -> bool:
    """Nobody seems to wait for another one: none waits at all, or all wait in the same operation."""
    return len({report.wait and (report.wait.op, report.wait.seq, report.wait.group) for report in reports}) < 2


def combine_looks(earlier: RankReport, later: RankReport) -> RankReport:
    """The report of two looks at a rank together: one that waits elsewhere by now waits for nobody, it runs."""
    together = later._replace(
        paused_ms=max((each for each in (earlier.paused_ms, later.paused_ms) if each is not None), default=None)
    )
    if (earlier.wait, _numbers(earlier)) == (later.wait, _numbers(later)):
        return together
    return together._replace(wait=None, running=True, groups=tuple(map(_passing, later.groups)))


def _numbers(report: RankReport) -> list[tuple[str, int | None, int | None]]:
    return [(group.name, group.enqueued, group.completed) for group in report.groups]


def _passing(group: GroupState) -> GroupState:
    """The operations that a running rank has issued, in which it is not stuck."""
    return group._replace(issued=tuple(each._replace(is_pending=False) for each in group.issued))


COMMAND = "dispatch-diagnose"
_THREADS = 256
"""Most threads of a rank besides the main one whose progress is known."""
_NUMBER = struct.Struct("<Q")
"""The sizes of what is asked for, and of an answer, before them."""


class RankSource(NamedTuple):
    """One thing to look at: ``name`` for people, ``run`` gives the JSON of its report, in the child."""

    name: str
    run: Callable[[], str]


class Result(NamedTuple):
    """The answer of a worker; ``output`` is "" where nothing came, and ``problem`` says why."""

    name: str
    output: str
    problem: str = ""


def collect(looks: Sequence[RankSource], jobs: int, timeout: float, memory: int = MEMORY) -> Iterator[Result]:
    """The results in the order in which they come. At most ``jobs`` at once, each for ``timeout`` seconds and with
    ``memory`` bytes of its own."""
    _import_once()
    waiting = list(range(len(looks)))[::-1]
    workers: dict[int, _Worker] = {}
    try:
        while waiting or any(worker.look for worker in workers.values()):
            idle = [worker for worker in workers.values() if not worker.look]
            while waiting and (idle or len(workers) < jobs):
                worker = idle.pop() if idle else _Worker(looks, tuple(workers.values()), memory)
                workers[worker.answers] = worker
                worker.begin(waiting.pop(), timeout)
            yield from _advance(workers)
    finally:
        for worker in workers.values():
            worker.end()


def _advance(workers: dict[int, _Worker]) -> Iterator[Result]:
    """Collect what workers have finished, or not within their time; these and those that have ended are taken away."""
    busy = [worker for worker in workers.values() if worker.look]
    limit = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
    readable, _, _ = select.select([worker.answers for worker in busy], [], [], limit)
    now = time.monotonic()
    for worker in busy:
        result = worker.read() if worker.answers in readable else None
        if not result and worker.deadline <= now:
            result = worker.give_up(f"no report within {worker.timeout:g} s")
        if result:
            if worker.has_ended:
                del workers[worker.answers]
            yield result


_ENDS_WITHIN = 1.0
"""Seconds that a worker which was killed has to end."""


class _Worker:
    """A forked process that looks at one thing after the other: what it has found out about the system and about
    Python's modules serves all of them, and so does its memory."""

    def __init__(self, looks: Sequence[RankSource], others: Sequence[_Worker], memory: int) -> None:
        """``others``: the workers that were forked before; a child that kept their pipes open would keep them alive
        when we are killed."""
        self._looks = looks
        self.look: RankSource | None = None
        self.timeout = 0.0
        self.deadline = 0.0
        self.has_ended = False
        self._answer = bytearray()
        asked, self._asks = os.pipe()
        self.answers, answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            for worker in (self, *others):
                worker.close()
            _serve(looks, asked, answer, memory)
        os.close(asked)
        os.close(answer)

    def begin(self, number: int, timeout: float) -> None:
        """Ask it for one of the looks."""
        self.look = self._looks[number]
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        with suppress(BrokenPipeError):  # it was killed: read() says so
            os.write(self._asks, _NUMBER.pack(number))

    def read(self) -> Result | None:
        """Take what is there; the result, if that was all."""
        piece = os.read(self.answers, 1 << 20)
        if not piece:
            return self.give_up("the look at it ended without a report (status {status})")
        self._answer += piece
        head = _NUMBER.size
        if len(self._answer) >= head and _NUMBER.unpack_from(self._answer)[0] > MAX_BYTES:
            return self.give_up(f"its report has more than {MAX_BYTES} bytes")
        if len(self._answer) < head or len(self._answer) < head + _NUMBER.unpack_from(self._answer)[0]:
            return None
        output = self._answer[head:].decode("utf-8", "replace")
        self._answer.clear()
        return self._result(output)

    def give_up(self, problem: str) -> Result:
        """Kill it, and say why there is no result."""
        status = self.end()
        return self._result("", problem.format(status=status))

    def _result(self, output: str, problem: str = "") -> Result:
        assert self.look
        name, self.look = self.look.name, None
        return Result(name, output, problem)

    def close(self) -> None:
        """Close our ends of its pipes."""
        os.close(self._asks)
        os.close(self.answers)

    def end(self) -> int:
        """Kill it; how it ended."""
        self.has_ended = True
        self.close()
        os.kill(self._pid, signal.SIGKILL)
        deadline = time.monotonic() + _ENDS_WITHIN
        while True:  # the kernel may keep one that reads a process for ever
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended or time.monotonic() > deadline:
                return status
            time.sleep(0.002)


def _serve(looks: Sequence[RankSource], asked: int, answer: int, memory: int) -> None:
    """Answer questions in the child; never returns."""
    status = 1
    try:
        gc.disable()
        gc.freeze()  # a collection would touch, and so copy, every page of what is there already
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while request := os.read(asked, _NUMBER.size):
            with MemoryLimit(memory):
                output = looks[_NUMBER.unpack(request)[0]].run().encode("utf-8", "backslashreplace")
            data = _NUMBER.pack(len(output)) + output
            while data:
                data = data[os.write(answer, data) :]
            gc.collect()
        status = 0
    finally:
        os._exit(status)


def _import_once() -> None:
    """Import what every look needs, before the first fork."""
    for name in (
        "gdbext.diagnosis.commands.diagnose",
        "gdbext.diagnosis.reporting",
        "gdbext.cpython.threads.runtime",
        "gdbext.cpython.wait_view",
        "gdbext.diagnosis.inspect",
        "gdbext.diagnosis.job.collectives",
        "gdbext.diagnosis.session",
        "gdbext.diagnosis.threads.thread_snapshots",
        "gdbext.diagnosis.threads.source_lines",
        "gdbext.torch.layout_choice",
        "gdbext.live.host",
        "gdbext.diagnosis.report.json_report",
        "gdbext.render.plain_json",
        "gdbext.engine.targets.core_target",
        "gdbext.engine.targets.live.snapshot_target",
        "gdbext.engine.targets.live.proc_target",
        "gdbext.torch.registry.dispatch_table",
        "gdbext.torch.registry",
        "gdbext.torch.stack.dispatch_stack",
        "gdbext.diagnosis.verdict.advice",
        "locale",
    ):
        import_module(name)
    with suppress(ForeignArchitecture):
        architectures.by_name(os.uname().machine)
