"""The process that scripts/measure_probes.py measures, and the tools beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.live.unstopped import RunningProcess
from support.installed import probing
from support.programs import harness

LONG = "86400"
"""Seconds: until it is interrupted."""


class MeasuredProcess:
    """tests/inferiors/measured_calls.py, asked one thing at a time; a context manager."""

    def __init__(self) -> None:
        self._inferior = harness.start("measured-calls")
        self.pid = self._inferior.pid
        self.where = ("-p", str(self.pid))
        self._answers = 0

    def begin(self, *words: object) -> None:
        """Ask for something that is answered later."""
        self._inferior.send(" ".join(map(str, words)))

    def answer(self, patience: float = 300.0) -> Any:
        """Of what was begun."""
        self._answers += 1
        lines = harness.wait_until(self._answered, "the process answers", patience)
        return json.loads(lines[self._answers - 1])

    def ask(self, *words: object) -> Any:
        """Begin and answer in one."""
        self.begin(*words)
        return self.answer()

    def best(self, operator: str, calls: int = 4000, rounds: int = 25) -> float:
        """Microseconds of processor time of a call of torch.OPERATOR."""
        return float(self.ask("loop", operator, calls, rounds)["used"])

    def lasts(self, operator: str, calls: int, rounds: int) -> float:
        """Microseconds of a call of torch.OPERATOR by the clock: where it is stopped meanwhile."""
        return float(self.ask("loop", operator, calls, rounds)["passed"])

    def _answered(self) -> list[str]:
        """The answers so far, where there are as many as were asked for."""
        lines = [line for line in self._inferior.output().splitlines(keepends=True) if line[:1] in "[{0123456789"]
        complete = [line for line in lines if line.endswith("\n")]
        return complete if len(complete) >= self._answers else []

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Ours, on the process while it runs."""
        target = RunningProcess(self.pid)
        try:
            yield Session(target)
        finally:
            target.close()

    def __enter__(self) -> MeasuredProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._inferior.close()


class Tool:
    """scripts/dispatch; a context manager that interrupts it."""

    def __init__(self, *words: str) -> None:
        self.began = time.monotonic()
        command = [str(harness.DISPATCH), *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.stopped = 0.0
        """Seconds that it took to end."""
        self.output = ""

    def wait_for_probes(self) -> None:
        """Until all are in place, in all libraries."""
        harness.wait_until(lambda: probing.probes_placed(self.process.pid) or self.ended(), "the probes are placed")

    def ended(self) -> bool:
        """False; raises HarnessError where it has ended."""
        if self.process.poll() is not None:
            raise harness.HarnessError(f"{self.process.args!r} ended with status {self.process.returncode}")
        return False

    def first_line(self) -> float:
        """Seconds from its start until it has written a line."""
        assert self.process.stdout is not None
        self.output += self.process.stdout.readline()
        return time.monotonic() - self.began

    def stop(self, number: int = signal.SIGINT) -> str:
        """End it; all that it has written."""
        if self.process.returncode is None:
            began = time.monotonic()
            self.process.send_signal(number)
            self.output += self.process.communicate(timeout=300)[0]
            self.stopped = time.monotonic() - began
        return self.output

    @property
    def document(self) -> Any:
        """The JSON that it ended with."""
        return json.loads(self.stop().strip().splitlines()[-1])

    def __enter__(self) -> Tool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.process.kill()
        self.stop()


def top(pid: int, *words: str) -> Tool:
    """dispatch-top that counts until it is stopped; its probes are in place."""
    tool = Tool("-p", str(pid), "--json", "dispatch-top", "--interval", LONG, "--limit", "100000", *words)
    tool.wait_for_probes()
    return tool


def trace(pid: int, *words: str) -> Tool:
    """dispatch-trace by probes that keeps the last seconds, until it is stopped; its probes are in place."""
    last = ["--last", "1", "--output", os.devnull]
    engine = ["dispatch-trace", "--engine", "probes"]
    tool = Tool("-p", str(pid), "--json", *engine, *last, *(words or ("--all",)))
    tool.wait_for_probes()
    return tool


def processor_seconds(pid: int) -> float:
    """Processor time of a process and of its children that still run (Documentation/scheduler/sched-stats)."""
    used = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return used + sum(processor_seconds(int(child)) for child in children)


def total(document: Any) -> int:
    """How many dispatches a report of dispatch-top has."""
    return sum(int(row["count"]) for row in document["top"]["rows"])
