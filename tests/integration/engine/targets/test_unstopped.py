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
    """With all its threads back in pause(2)."""
    wait_until(lambda: all(place_of(plain.pid, tid).stack_pointer for tid in procfs.threads(plain.pid)), "all sleep")
    return UnstoppedProcess(plain.pid, ThreadFinder())


def test_the_same_stacks_as_of_a_stopped_process(pausing: Plain) -> None:
    unstopped = Session(unstopped_process(pausing))
    seen = {thread.tid: unstopped.stacks.of(thread) for thread in unstopped.target.threads()}
    assert set(pausing.states()) == {"S"}, "nobody was stopped"
    assert unstopped.target.paused_ms == 0
    assert unstopped.target.threads_that_ran() == ()
    with ProcTarget(pausing.pid) as stopped:
        session = Session(stopped)
        for thread in stopped.threads():
            expected = session.stacks.of(thread)
            assert [frame.pc for frame in seen[thread.tid].frames] == [frame.pc for frame in expected.frames]
            assert seen[thread.tid].outer == expected.outer
    unstopped.target.close()


def test_it_knows_of_the_process_what_a_stopped_one_does(pausing: Plain) -> None:
    """Also each thread's system call and control block."""
    unstopped = unstopped_process(pausing)
    registers = {thread.tid: thread.registers() for thread in unstopped.threads()}
    calls = {tid: blocked(each, Session(unstopped).memory) for tid, each in registers.items()}
    with ProcTarget(pausing.pid) as stopped:
        assert unstopped.environ() == stopped.environ() != {}
        assert unstopped.files_known_at() == pytest.approx(stopped.files_known_at(), abs=1)
        assert unstopped.auxv() == stopped.auxv()
        memory = Session(stopped).memory
        for thread in stopped.threads():
            expected = thread.registers()
            assert stopped.architecture.thread_pointer(registers[thread.tid]) == expected["fs_base"]
            names = [call and call.name for call in (calls[thread.tid], blocked(expected, memory))]
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
