"""Looks at a process whose threads all sleep harm none of its calls, and say that nobody was stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gdbext.diagnosis.inspect import inspect_threads
from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import briefly_stopped
from gdbext.engine.targets.live.snapshot_target import brief_stop
from gdbext.engine.targets.live.unstopped import SleepingProcess
from gdbext.hosts.debugger.recorded_command import RecordedCommand
from gdbext.hosts.opening import Standstill, open_live, open_recording
from support.programs import procfs
from support.programs.harness import INFERIORS, PATIENCE, some, wait_until

LOOKS = 50
CALLS = {
    "write": (1 << 20, {1}),
    "recv MSG_WAITALL": (8, {45}),
    "epoll_wait": (1, {232, 281}),
    "sigtimedwait": (10, {128}),
    "semop": (0, {65, 220}),
}
"""What each call returns where nobody stopped it, and its numbers on x86-64."""
UNHARMED = {name: [result, ""] for name, (result, _) in CALLS.items()}


class BlockedCalls:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, INFERIORS / "blocked_calls.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.tids = json.loads(some(self.process.stdout).readline())["threads"]
        wait_until(lambda: all(map(self._is_asleep, procfs.threads(self.process.pid))), "all sleep")

    def _is_asleep(self, tid: int) -> bool:
        """In the very call that it is for, the main thread in read: not in another one for a moment, as for memory."""
        name = next((name for name, each in self.tids.items() if each == tid), "")
        numbers = CALLS[name][1] if name else procfs.SYSCALLS["read"]
        return procfs.syscall(self.process.pid, tid)[0] in map(str, numbers)

    def results(self) -> dict[str, list[object]]:
        output, _ = self.process.communicate("go\n", timeout=PATIENCE)
        found: dict[str, list[object]] = json.loads(output)
        return found


@pytest.fixture
def program() -> BlockedCalls:
    return BlockedCalls()


def test_sleeping_threads_are_read_without_a_stop_and_no_call_ends_early(program: BlockedCalls) -> None:
    for _ in range(LOOKS):
        target = briefly_stopped(program.process.pid)
        session, found = Session(target).read_consistently(inspect_threads)
        assert (target.moment.stops, target.moment.paused_ms, target.moment.cut_short()) == (0, 0, {})
        assert len(found.threads) == len(program.tids) + 1
        assert session.target.moment.threads_that_ran() == ()
        target.close()
    assert program.results() == UNHARMED


def test_what_sleeps_is_recorded_without_a_stop(program: BlockedCalls, tmp_path: Path) -> None:
    target = open_live(program.process.pid, Standstill.ASLEEP)
    assert isinstance(target, SleepingProcess)
    assert target.moment.stops == 0
    command = RecordedCommand("all-threads", (), str(tmp_path / "asleep.rec"))
    command.save(command.run(lambda: target, color=False))
    assert target.is_consistent()
    target.moment.need_registers(program.tids["semop"])
    assert not target.is_consistent()
    assert program.results() == UNHARMED
    replay = open_recording(str(tmp_path / "asleep.rec"))
    assert {thread.tid for thread in replay.memory.threads() if thread.registers()} >= set(program.tids.values())


def test_a_stop_names_the_calls_that_it_may_have_ended(program: BlockedCalls) -> None:
    target = brief_stop(program.process.pid)
    target.memory.threads()
    named = target.moment.cut_short()
    target.close()
    results = program.results()
    harmed = {name for name, result in results.items() if result != UNHARMED[name]}
    assert harmed, "what the look without a stop is for"
    assert {program.tids[name] for name in harmed} <= named.keys()
    assert set(named) <= set(program.tids.values()), "the main thread reads a pipe, which goes on"


def test_a_stop_completes_what_was_read_of_sleeping_threads(program: BlockedCalls) -> None:
    target = briefly_stopped(program.process.pid)
    asleep = target.memory.threads()[-1]
    assert asleep.lacks_registers
    assert not target.moment.retake()
    stack = asleep.registers()["rsp"]
    before = target.memory.read(stack, 64)
    stopped = some(target.moment.stopped_thread(asleep.tid))
    assert not stopped.lacks_registers
    assert {"rbx", "r12", "rbp"} <= stopped.registers().keys()
    assert (stopped.registers()["rsp"], target.memory.read(stack, 64)) == (stack, before)
    assert target.moment.stops == 1
    assert not target.moment.retake()
    target.close()
    program.results()
