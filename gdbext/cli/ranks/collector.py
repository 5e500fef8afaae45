"""Reports of many processes of this machine at once, made by a few processes of our own.

Modules are imported once, before they are forked; ptrace's rule that one thread does everything holds; and a target
that hangs the look costs its own time limit. Killing a worker lets its target go: the kernel ends ptrace with the
tracer.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from gdbext.arch import registry
from gdbext.errors import ForeignArchitecture
from gdbext.model.record import Record

COMMAND = "dispatch-diagnose"
_NUMBER = struct.Struct("<Q")
"""What is asked for, and the bytes of an answer, before them."""


class Look(Record):
    """One thing to look at: ``name`` for people, ``run`` gives the JSON of its report, in the child."""

    name: str
    run: Callable[[], str]


class Result(Record):
    """What came back; ``output`` is "" where nothing did, and ``problem`` says why."""

    name: str
    output: str
    problem: str = ""


def collect(looks: Sequence[Look], jobs: int, timeout: float) -> Iterator[Result]:
    """The results in the order in which they come. At most ``jobs`` at once, each for ``timeout`` seconds."""
    _import_once()
    waiting = list(range(len(looks)))[::-1]
    workers: dict[int, _Worker] = {}
    try:
        while waiting or any(worker.look is not None for worker in workers.values()):
            idle = [worker for worker in workers.values() if worker.look is None]
            while waiting and (idle or len(workers) < jobs):
                worker = idle.pop() if idle else _Worker(looks, tuple(workers.values()))
                workers[worker.answers] = worker
                worker.begin(waiting.pop(), timeout)
            yield from _advance(workers)
    finally:
        for worker in workers.values():
            worker.end()


def _advance(workers: dict[int, _Worker]) -> Iterator[Result]:
    """What workers have finished, or not within their time; these and those that have ended are taken away."""
    busy = [worker for worker in workers.values() if worker.look is not None]
    limit = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
    readable, _, _ = select.select([worker.answers for worker in busy], [], [], limit)
    now = time.monotonic()
    for worker in busy:
        result = worker.read() if worker.answers in readable else None
        if result is None and worker.deadline <= now:
            result = worker.give_up(f"no report within {worker.timeout:g} s")
        if result is not None:
            if worker.has_ended:
                del workers[worker.answers]
            yield result


class _Worker:
    """A forked process that looks at one thing after the other: what it has found out about the system and about
    Python's modules serves all of them, and so does its memory."""

    def __init__(self, looks: Sequence[Look], others: Sequence[_Worker]) -> None:
        """``others``: the workers that were forked before; a child that kept their pipes open would keep them alive
        when we are killed."""
        self._looks = looks
        self.look: Look | None = None
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
            _serve(looks, asked, answer)
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
        assert self.look is not None
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
        _, status = os.waitpid(self._pid, 0)
        return status


def _serve(looks: Sequence[Look], asked: int, answer: int) -> None:
    """In the child: never returns."""
    status = 1
    try:
        gc.disable()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while request := os.read(asked, _NUMBER.size):
            output = looks[_NUMBER.unpack(request)[0]].run().encode("utf-8", "backslashreplace")
            data = _NUMBER.pack(len(output)) + output
            while data:
                data = data[os.write(answer, data) :]
            gc.collect()
        status = 0
    finally:
        os._exit(status)


def _import_once() -> None:
    """What every look needs, before the first fork."""
    from importlib import import_module

    for name in (
        "gdbext.commands.diagnose", "gdbext.commands.reporting", "gdbext.cpython.threads.runtime",
        "gdbext.cpython.threads.thread_table", "gdbext.cpython.wait_view", "gdbext.inspection.inspection",
        "gdbext.inspection.job.collective_waits", "gdbext.inspection.job.collectives", "gdbext.inspection.session",
        "gdbext.inspection.stacks", "gdbext.inspection.threads.children", "gdbext.inspection.threads.source_lines",
        "gdbext.inspection.threads.thread_snapshots", "gdbext.layouts.select", "gdbext.live.host",
        "gdbext.render.json.json_report", "gdbext.render.json.sections", "gdbext.targets.core_target",
        "gdbext.targets.live.brief_stop", "gdbext.targets.live.proc_target", "gdbext.torch.registry.dispatch_table",
        "gdbext.torch.registry.operators", "gdbext.torch.stack.dispatch_stack", "gdbext.verdict.advice", "locale",
    ):  # fmt: skip
        import_module(name)
    with suppress(ForeignArchitecture):
        registry.by_name(os.uname().machine)
    gc.freeze()  # a collection in a child would touch, and so copy, every page of these modules
