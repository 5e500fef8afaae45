"""``--no-stop``: threads that sleep are read as they sleep, and nobody notices."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import ThreadFinder
from gdbext.engine.process.code_reader import blocked
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.targets.live.thread_motion import place_of
from gdbext.engine.targets.live.unstopped import UnstoppedProcess
from gdbext.errors import TargetError
from support.programs import procfs
from support.programs.harness import wait_until
from support.programs.plain_program import Plain

pytestmark = pytest.mark.compiler


def unstopped_process(plain: Plain) -> UnstoppedProcess:
    wait_until(lambda: all(place_of(plain.pid, tid).stack_pointer for tid in procfs.threads(plain.pid)), "all sleep")
    return UnstoppedProcess(plain.pid, ThreadFinder())


def test_it_knows_of_the_process_what_a_stopped_one_does(pausing: Plain) -> None:
    unstopped = unstopped_process(pausing)
    session = Session(unstopped)
    registers = {thread.tid: thread.registers() for thread in unstopped.threads()}
    calls = {tid: blocked(each, session.memory) for tid, each in registers.items()}
    stacks = {thread.tid: session.stacks.of(thread) for thread in unstopped.threads()}
    assert set(pausing.states()) == {"S"}, "nobody was stopped"
    assert (unstopped.paused_ms, unstopped.threads_that_ran()) == (0, ())
    with ProcTarget(pausing.pid) as stopped:
        assert unstopped.environ() == stopped.environ() != {}
        assert unstopped.files_known_at() == pytest.approx(stopped.files_known_at(), abs=1)
        assert unstopped.auxv() == stopped.auxv()
        other = Session(stopped)
        for thread in stopped.threads():
            stack, expected = stacks[thread.tid], other.stacks.of(thread)
            assert [frame.pc for frame in stack.frames] == [frame.pc for frame in expected.frames]
            assert stack.outer == expected.outer
            assert stopped.architecture.thread_pointer(registers[thread.tid]) == thread.registers()["fs_base"]
            names = [call and call.name for call in (calls[thread.tid], blocked(thread.registers(), other.memory))]
            assert names == ["pause", "pause"]
    unstopped.close()


def test_one_that_runs_has_no_registers_and_is_said_to_run(pausing: Plain) -> None:
    target = unstopped_process(pausing)
    thread = target.threads()[0]
    thread.place = thread.place._replace(call="running")  # type: ignore[attr-defined]
    assert thread.runs_on
    with pytest.raises(TargetError, match="runs"):
        thread.registers()
    snapshot = Session(target).threads.of(thread)
    assert snapshot.frames == []
    assert "--no-stop" in snapshot.notes[0]
    target.close()
