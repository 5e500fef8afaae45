"""Reports of many processes of this machine at once, each made by a process of its own.

We fork for each: modules are imported once, ptrace's rule that one thread does everything holds, and a target that
hangs the look costs its own time limit. Killing the child lets its target go: the kernel ends ptrace with the tracer.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from gdbext.arch import registry
from gdbext.errors import ForeignArchitecture
from gdbext.model.record import Record

COMMAND = "dispatch-diagnose"


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
    waiting = list(reversed(looks))
    running: dict[int, _Child] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                child = _Child(waiting.pop(), timeout)
                running[child.pipe] = child
            yield from _advance(running)
    finally:
        for child in running.values():
            child.end()


def _advance(running: dict[int, _Child]) -> Iterator[Result]:
    now = time.monotonic()
    limit = max(0.0, min(child.deadline for child in running.values()) - now)
    readable, _, _ = select.select(list(running), [], [], limit)
    for pipe in readable:
        if running[pipe].read():
            child = running.pop(pipe)
            yield child.result()
    now = time.monotonic()
    for pipe in [pipe for pipe, child in running.items() if child.deadline <= now]:
        child = running.pop(pipe)
        child.end()
        yield Result(child.name, "", f"no report within {child.timeout:g} s")


class _Child:
    """A forked process that looks at one thing."""

    def __init__(self, look: Look, timeout: float) -> None:
        self.name = look.name
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.pipe, theirs = os.pipe()
        self._pieces: list[bytes] = []
        self._pid = os.fork()
        if self._pid == 0:
            _look(look, theirs)
        os.close(theirs)

    def read(self) -> bool:
        """Take what is there; whether that was all."""
        piece = os.read(self.pipe, 1 << 20)
        self._pieces.append(piece)
        return not piece

    def result(self) -> Result:
        """After the end of the output."""
        os.close(self.pipe)
        _, status = os.waitpid(self._pid, 0)
        output = b"".join(self._pieces).decode("utf-8", "replace")
        if output:
            return Result(self.name, output)
        return Result(self.name, "", f"the look at it ended without a report (status {status})")

    def end(self) -> None:
        """Kill it."""
        os.close(self.pipe)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _look(look: Look, pipe: int) -> None:
    """In the child: never returns."""
    status = 1
    try:
        gc.disable()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        data = look.run().encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(pipe, data) :]
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
