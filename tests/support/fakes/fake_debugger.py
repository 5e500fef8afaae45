"""A debugger that is not there: says what it was asked for, and can be told that something happened."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from gdbext.engine.targets.base_target import Target
from gdbext.errors import TargetError
from gdbext.hosts.debugger.base_debugger import Debugger, Job
from gdbext.hosts.debugger.frame_source import FrameSource
from support.fakes.fake_target import FakeTarget


@dataclass
class FakeBreakpoint:
    number: int
    place: object
    hit: Callable[..., Any] | None
    alive: bool = True

    def is_alive(self) -> bool:
        return self.alive

    def delete(self) -> None:
        self.alive = False

    delete_later = delete


class FakeSetter:
    def __init__(self) -> None:
        self.made: list[FakeBreakpoint] = []
        self.ended: Callable[[], None] = lambda: None

    def notes(self, go_on: bool) -> tuple[str, ...]:
        return ("they go on",) if go_on else ()

    def _make(self, place: object, *more: Any) -> FakeBreakpoint:
        self.made.append(FakeBreakpoint(len(self.made) + 1, place, more[-1] if more else None))
        return self.made[-1]

    set_pending = set_call = set_trap = set_stop = _make

    def text_of(self, condition: object) -> str:
        return str(condition)

    def on_exit(self, action: Callable[[], None]) -> None:
        self.ended = action


class FakeDebugger(Debugger):
    """``log`` is what it was asked to do, in order."""

    name = "fake"

    def __init__(self, process: bool = True) -> None:
        self.log: list[str] = []
        self.shown = ""
        self.setter = FakeSetter()
        self.process = process
        self.source: FrameSource | None = None
        self.which: Hashable = 1
        self.targets: list[FakeTarget] = []
        self.is_closed = False

    def target(self) -> Target:
        if not self.process:
            raise TargetError("there is no process")
        self.targets.append(FakeTarget({}))
        return self.targets[-1]

    def stopped_target(self) -> Target:
        return self.target()

    def has_process(self) -> bool:
        return self.process

    def identity(self) -> Hashable:
        return self.which

    def thread_numbers(self) -> Sequence[int]:
        return (1, 2, 10)

    def close(self) -> None:
        self.is_closed = True

    def run_control(self) -> Any:
        self.log.append("run control")
        return SimpleNamespace(can_run_beside=False)

    def pause(self, target: Target) -> Any:
        raise NotImplementedError

    def breakpoint_setter(self) -> Any:
        self.log.append("breakpoint setter")
        return self.setter

    def write(self, text: str) -> None:
        self.shown += text

    def extend_stacks(self, source: FrameSource | None) -> None:
        self.source = source

    def open(self, job: Job, live: bool) -> Target:
        self.log.append(f"open {job.command}, live={live}")
        return self.target()

    def release(self, job: Job, runs_on: bool) -> None:
        self.log.append(f"let go of {job.command}, runs on={runs_on}")
