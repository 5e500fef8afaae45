"""A process is stopped for as long as copying takes, or not at all: what moved is known, and what sleeps is read so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import ThreadFinder
from gdbext.engine.process.code_reader import blocked_syscall
from gdbext.engine.targets.base_target import Signal
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget, brief_stop
from gdbext.engine.targets.live.thread_motion import sleep_place
from gdbext.engine.targets.live.unstopped import UnstoppedProcess
from gdbext.engine.targets.system.linux import PAGE_SIZE
from gdbext.errors import TargetError, TargetGone
from support.programs import procfs
from support.programs.harness import wait_until
from support.programs.plain_program import Plain

pytestmark = pytest.mark.compiler


@pytest.fixture
def hung(pausing: Plain) -> Iterator[SnapshotTarget]:
    target = brief_stop(pausing.pid)
    yield target
    target.close()
    assert pausing.is_untouched()


@pytest.fixture
def moving(counting: Plain) -> Iterator[SnapshotTarget]:
    target = brief_stop(counting.pid)
    target.memory.threads()
    yield target
    target.close()


def data_page(target: SnapshotTarget) -> int:
    return next(m.start for m in target.memory.maps() if "w" in m.permissions and "plain program" in m.path)


def library_pages(target: SnapshotTarget) -> list[int]:
    return [m.start for m in target.memory.maps() if "w" in m.permissions and ".so" in m.path]


def test_what_hangs_has_not_moved(hung: SnapshotTarget) -> None:
    """Nobody is stopped before threads are wanted."""
    page, unread = data_page(hung), library_pages(hung)[0]
    hung.memory.read(page, 8)
    assert hung.moment.paused_ms == 0
    pointer = hung.memory.threads()[0].registers()["rsp"]
    hung.memory.read(page, 8)
    assert hung.moment.threads_that_ran() == ()
    assert not hung.moment.retake()
    hung.close()
    hung.close()
    assert len(hung.memory.read(pointer, 8)) == 8, "what was copied stays"
    with pytest.raises(TargetError):
        hung.memory.read(unread, 8)


def test_the_process_runs_while_the_target_is_open(moving: SnapshotTarget, counting: Plain) -> None:
    registers = dict(moving.memory.threads()[0].registers())
    stack = moving.memory.read(registers["rsp"] & -8, 256)
    counting.wait_until_it_writes()
    assert moving.memory.threads()[0].registers() == registers
    assert moving.memory.read(registers["rsp"] & -8, 256) == stack, "the stack is that of the stop"
    assert moving.moment.paused_ms
    moving.close()
    assert counting.is_untouched()


def test_what_moved_is_looked_at_again_with_all_that_was_read(moving: SnapshotTarget, counting: Plain) -> None:
    page = data_page(moving)
    moving.memory.read(page, PAGE_SIZE)
    counting.wait_until_it_writes()
    assert list(moving.moment.threads_that_ran()) == [counting.pid]
    assert moving.moment.retake()
    copied = moving.memory.read(page, PAGE_SIZE)
    assert moving.memory.read(page, PAGE_SIZE) == copied
    assert moving.moment.threads_that_ran() == (), "nothing was read but what was copied at the second stop"
    assert not moving.moment.retake(), "twice is enough"
    assert not moving.moment.retake(in_doubt=True), "all that was read is of one moment"
    moving.memory.read(library_pages(moving)[0], 8)
    assert not moving.moment.retake()
    assert moving.moment.retake(in_doubt=True), "what was read may be of two"


def test_who_is_said_to_wait_for_ever_and_moves_is_looked_at_until_the_copy_has_all(
    moving: SnapshotTarget, counting: Plain
) -> None:
    pages = library_pages(moving)[:3]
    for page in pages:
        moving.memory.read(page, 8)
        counting.wait_until_it_writes()
        assert moving.moment.has_run(counting.pid)
        assert not moving.moment.has_run(1 << 22)
        assert moving.moment.retake()
    for page in pages:
        moving.memory.read(page, 8)
    assert not moving.moment.has_run(counting.pid), "all that was read is of one moment"
    assert not moving.moment.retake()


def test_a_process_that_is_about_to_crash_is_held(pausing: Plain) -> None:
    def stop() -> ProcTarget:
        stopped = ProcTarget(pausing.pid)
        stopped.memory.threads()[0].signal = Signal(11, "SIGSEGV")  # as if it had been on its way
        return stopped

    target = SnapshotTarget(pausing.pid, "none", stop, lambda stopped: stopped.close())
    assert target.memory.threads()[0].signal is not None
    assert set(pausing.states()) == {"t"}
    assert target.moment.threads_that_ran() == ()
    target.close()
    assert pausing.is_untouched()


def test_the_process_ends_meanwhile(moving: SnapshotTarget, counting: Plain) -> None:
    counting.end()
    with pytest.raises(TargetGone):
        moving.memory.read(data_page(moving), 8)


def unstopped_process(plain: Plain) -> UnstoppedProcess:
    wait_until(lambda: all(sleep_place(plain.pid, tid).stack_pointer for tid in procfs.threads(plain.pid)), "all sleep")
    return UnstoppedProcess(plain.pid, ThreadFinder())


def test_it_knows_of_the_process_what_a_stopped_one_does(pausing: Plain) -> None:
    unstopped = unstopped_process(pausing)
    session = Session(unstopped)
    registers = {thread.tid: thread.registers() for thread in unstopped.memory.threads()}
    calls = {tid: blocked_syscall(each, session.memory) for tid, each in registers.items()}
    stacks = {thread.tid: session.stacks.of(thread) for thread in unstopped.memory.threads()}
    assert set(pausing.states()) == {"S"}, "nobody was stopped"
    assert (unstopped.moment.paused_ms, unstopped.moment.threads_that_ran()) == (0, ())
    with ProcTarget(pausing.pid) as stopped:
        assert unstopped.origin.environ() == stopped.origin.environ() != {}
        assert unstopped.origin.files_known_at() == pytest.approx(stopped.origin.files_known_at(), abs=1)
        assert unstopped.memory.auxv() == stopped.memory.auxv()
        other = Session(stopped)
        for thread in stopped.memory.threads():
            stack, expected = stacks[thread.tid], other.stacks.of(thread)
            assert [frame.pc for frame in stack.frames] == [frame.pc for frame in expected.frames]
            assert stack.outer == expected.outer
            assert stopped.architecture.thread_pointer(registers[thread.tid]) == thread.registers()["fs_base"]
            names = [
                call and call.name for call in (calls[thread.tid], blocked_syscall(thread.registers(), other.memory))
            ]
            assert names == ["pause", "pause"]
    unstopped.close()


def test_one_that_runs_has_no_registers_and_is_said_to_run(pausing: Plain) -> None:
    target = unstopped_process(pausing)
    thread = target.memory.threads()[0]
    thread.place = thread.place._replace(call="running")  # type: ignore[attr-defined]
    assert thread.runs_on
    with pytest.raises(TargetError, match="runs"):
        thread.registers()
    snapshot = Session(target).threads.snapshot(thread)
    assert snapshot.frames == []
    assert "--no-stop" in snapshot.notes[0]
    target.close()
