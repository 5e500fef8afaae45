"""Collects reports of many processes of this machine at once, by a few worker processes, and which have run meanwhile.

Modules are imported once, before workers are forked; ptrace's rule that one thread does everything holds; and a target
on which the examination hangs costs only its own time limit. Killing a worker releases its target: the kernel ends
ptrace with the tracer.

The processes are examined one after the other, and a job that runs looks like one with a late rank. A rank that waited
when it was examined, and whose main thread has slept from before the first examination until after the last one, does
hang as far as can be seen. If it has run, it is examined once more.
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
from gdbext.engine.targets.live.thread_motion import sleep_place
from gdbext.errors import ForeignArchitecture
from gdbext.tools.ranks.job_report import RankReport

COMMAND = "dispatch-diagnose"
_THREADS = 256
"""Threads of a rank besides the main one whose progress is recorded, at most."""
_NUMBER = struct.Struct("<Q")
"""On the pipes of a worker: the number of a source, and the size of an answer before it."""
_ENDS_WITHIN = 1.0
"""Seconds that a killed worker has to exit."""


class ProgressOfRanks:
    """The progress of ranks' threads since before the first of them was examined.

    Not since their reports arrived: a thread that moves between the moment that a report shows and its arrival here
    has left that moment, too. A thread that moved because it was stopped is examined once more for nothing.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._places = {
            (pid, tid): sleep_place(pid, tid)
            for pid in pids
            for tid in (pid, *sorted(living_threads(pid) - {pid})[:_THREADS])
        }

    def that_ran(self, reports: Iterable[RankReport]) -> list[RankReport]:
        """Those that waited for others and have run since, or are about to."""
        waiting = (report for report in reports if report.wait)
        return [report for report in waiting if self._has_moved(report.pid, report.thread or report.pid)]

    def _has_moved(self, pid: int, tid: int) -> bool:
        before = self._places.get((pid, tid))
        if not before:  # of another machine, or a thread that was started since
            return (pid, pid) in self._places
        return sleep_place(pid, tid).has_moved(before)


def is_settled(reports: Sequence[RankReport]) -> bool:
    """No rank seems to wait for another one: none waits at all, or all wait in the same operation."""
    return len({report.wait and (report.wait.op, report.wait.seq, report.wait.group) for report in reports}) < 2


def combine_reports(earlier: RankReport, later: RankReport) -> RankReport:
    """The result of two examinations of a rank. If it waits elsewhere by now it waits for no rank: it runs."""
    paused = [report.paused_ms for report in (earlier, later) if report.paused_ms is not None]
    together = later._replace(paused_ms=max(paused, default=None))
    waits_and_numbers = [
        (report.wait, [(group.name, group.enqueued, group.completed) for group in report.groups])
        for report in (earlier, later)
    ]
    if waits_and_numbers[0] == waits_and_numbers[1]:
        return together
    groups = tuple(
        group._replace(issued=tuple(issued._replace(is_pending=False) for issued in group.issued))
        for group in later.groups
    )
    return together._replace(wait=None, running=True, groups=groups)


class RankSource(NamedTuple):
    """A process, core or recording to examine: ``name`` for people, ``run`` gives the JSON of its report, in a
    worker."""

    name: str
    run: Callable[[], str]


class Result(NamedTuple):
    """The answer of a worker; if ``output`` is "", ``problem`` says why."""

    name: str
    output: str
    problem: str = ""


def collect(sources: Sequence[RankSource], jobs: int, timeout: float, memory: int = MEMORY) -> Iterator[Result]:
    """The results in the order in which they arrive. At most ``jobs`` at once, each for ``timeout`` seconds and with
    ``memory`` bytes of its own."""
    _import_once()
    waiting = list(range(len(sources)))[::-1]
    workers: dict[int, _Worker] = {}  # by the fd of their answers
    try:
        while waiting or any(worker.source for worker in workers.values()):
            idle = [worker for worker in workers.values() if not worker.source]
            while waiting and (idle or len(workers) < jobs):
                worker = idle.pop() if idle else _Worker(sources, tuple(workers.values()), memory)
                workers[worker.answers] = worker
                worker.start(waiting.pop(), timeout)
            busy = [worker for worker in workers.values() if worker.source]
            limit = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            readable, _, _ = select.select([worker.answers for worker in busy], [], [], limit)
            now = time.monotonic()
            for worker in busy:
                result = worker.read() if worker.answers in readable else None
                if not result and worker.deadline <= now:
                    result = worker.give_up(f"no report within {timeout:g} s")
                if result:
                    if worker.has_ended:
                        del workers[worker.answers]
                    yield result
    finally:
        for worker in workers.values():
            worker.kill()


class _Worker:
    """A forked process that examines one source after the other: what it has learned of the system and of Python's
    modules serves all of them, and so does its memory."""

    def __init__(self, sources: Sequence[RankSource], others: Sequence[_Worker], memory: int) -> None:
        """``others``: the workers that were forked before. A child that kept their pipes open would keep them alive
        when we are killed."""
        self._sources = sources
        self.source: RankSource | None = None
        self.deadline = 0.0
        self.has_ended = False
        self._answer = bytearray()
        questions, self._questions = os.pipe()
        self.answers, answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            for worker in (self, *others):
                worker.close()
            _serve(sources, questions, answer, memory)
        os.close(questions)
        os.close(answer)

    def start(self, number: int, timeout: float) -> None:
        """Have it examine the source of that number."""
        self.source = self._sources[number]
        self.deadline = time.monotonic() + timeout
        with suppress(BrokenPipeError):  # it was killed: read() says so
            os.write(self._questions, _NUMBER.pack(number))

    def read(self) -> Result | None:
        """Read the next piece of the answer; the result if it is whole, or the worker has failed."""
        piece = os.read(self.answers, 1 << 20)
        if not piece:
            return self.give_up("examining it ended without a report (status {status})")
        self._answer += piece
        if len(self._answer) < _NUMBER.size:
            return None
        size = _NUMBER.unpack_from(self._answer)[0]
        if size > MAX_BYTES:
            return self.give_up(f"its report has more than {MAX_BYTES} bytes")
        if len(self._answer) < _NUMBER.size + size:
            return None
        output = self._answer[_NUMBER.size :].decode("utf-8", "replace")
        self._answer.clear()
        return self._result(output)

    def give_up(self, problem: str) -> Result:
        """Kill it; the result that has no output."""
        status = self.kill()
        return self._result("", problem.format(status=status))

    def _result(self, output: str, problem: str = "") -> Result:
        assert self.source
        name, self.source = self.source.name, None
        return Result(name, output, problem)

    def close(self) -> None:
        """Close our ends of its pipes."""
        os.close(self._questions)
        os.close(self.answers)

    def kill(self) -> int:
        """Kill it and wait for a moment; its status as of waitpid(2)."""
        self.has_ended = True
        self.close()
        os.kill(self._pid, signal.SIGKILL)
        deadline = time.monotonic() + _ENDS_WITHIN
        while True:  # the kernel may keep one that reads a process for ever
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended or time.monotonic() > deadline:
                return status
            time.sleep(0.002)


def _serve(sources: Sequence[RankSource], questions: int, answer: int, memory: int) -> None:
    """Answer questions from the fd ``questions`` in the child; never returns."""
    status = 1
    try:
        gc.disable()
        gc.freeze()  # a collection would touch, and so copy, every page that the parent shares
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while request := os.read(questions, _NUMBER.size):
            with MemoryLimit(memory):
                output = sources[_NUMBER.unpack(request)[0]].run().encode("utf-8", "backslashreplace")
            data = _NUMBER.pack(len(output)) + output
            while data:
                data = data[os.write(answer, data) :]
            gc.collect()
        status = 0
    finally:
        os._exit(status)


def _import_once() -> None:
    """Import what every examination needs, before the first fork."""
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
