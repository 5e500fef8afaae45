"""A process is stopped for as long as copying takes, and what moved meanwhile is known."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.base_target import Signal
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget, brief_stop
from gdbext.engine.targets.live.thread_motion import SleepPlace
from gdbext.engine.targets.system.linux import PAGE_SIZE
from gdbext.errors import TargetError, TargetGone
from support.programs.plain_program import Plain

pytestmark = pytest.mark.compiler


def writable_page_outside_the_stacks(target: SnapshotTarget) -> int:
    return next(m.start for m in target.maps() if "w" in m.permissions and "plain program" in m.path)


def test_nobody_is_stopped_before_threads_are_wanted(pausing: Plain) -> None:
    target = brief_stop(pausing.pid)
    target.maps()
    target.read(writable_page_outside_the_stacks(target), 8)
    assert target.paused_ms == 0
    target.close()


def test_the_process_runs_while_the_target_is_open(counting: Plain) -> None:
    target = brief_stop(counting.pid)
    registers = dict(target.threads()[0].registers())
    pieces = [target.read(registers["rsp"] & -8, 256)]
    counting.wait_until_it_writes()
    assert target.threads()[0].registers() == registers
    assert target.read(registers["rsp"] & -8, 256) == pieces[0], "the stack is that of the stop"
    assert target.paused_ms is not None
    assert target.paused_ms > 0
    target.close()
    assert counting.is_untouched()


def test_what_hangs_has_not_moved(pausing: Plain) -> None:
    target = brief_stop(pausing.pid)
    target.threads()
    target.read(writable_page_outside_the_stacks(target), 8)
    assert target.threads_that_ran() == ()
    assert not target.retake()
    target.close()


def test_threads_that_only_fell_asleep_late_are_found_at_their_places_by_another_stop(pausing: Plain) -> None:
    target = brief_stop(pausing.pid)
    read = []
    target.on_change(lambda: read.append("forgotten"))
    registers = dict(target.threads()[0].registers())
    target.read(writable_page_outside_the_stacks(target), 8)
    paused = target.paused_ms
    assert target._copy is not None
    target._copy._places = {tid: SleepPlace("", "1 2 3") for tid in target._copy._places}  # as if read too early
    assert not target.has_run(pausing.pid)
    assert target.paused_ms > paused, "another stop has proven it"
    assert target.threads_that_ran() == ()
    assert not target.retake(), "what was read holds"
    assert read == ["forgotten"], "at the first stop alone"
    kept = {name: registers[name] for name in target.architecture.callee_saved}
    assert kept.items() <= target.threads()[0].registers().items()
    target.close()
    assert pausing.is_untouched()


def test_what_moved_is_looked_at_again_with_all_that_was_read(counting: Plain) -> None:
    target = brief_stop(counting.pid)
    target.threads()
    page = writable_page_outside_the_stacks(target)
    target.read(page, PAGE_SIZE)
    counting.wait_until_it_writes()
    assert list(target.threads_that_ran()) == [counting.pid]
    assert target.retake()
    copied = target.read(page, PAGE_SIZE)
    assert target.read(page, PAGE_SIZE) == copied
    assert target.threads_that_ran() == (), "nothing was read but what was copied at the second stop"
    assert not target.retake(), "twice is enough"
    assert not target.retake(in_doubt=True), "all that was read is of one moment"
    target.read(next(m.start for m in target.maps() if "w" in m.permissions and ".so" in m.path), 8)
    assert not target.retake()
    assert target.retake(in_doubt=True), "what was read may be of two"
    target.close()


def test_who_is_said_to_wait_for_ever_and_moves_is_looked_at_until_the_copy_has_all(counting: Plain) -> None:
    target = brief_stop(counting.pid)
    target.threads()
    pages = [m.start for m in target.maps() if "w" in m.permissions and ".so" in m.path][:3]
    for number, page in enumerate(pages):
        target.read(page, 8)
        counting.wait_until_it_writes()
        assert target.has_run(counting.pid)
        assert not target.has_run(1 << 22)
        assert target.retake(), number
    for page in pages:
        target.read(page, 8)
    assert not target.has_run(counting.pid), "all that was read is of one moment"
    assert not target.retake()
    target.close()


def test_another_look_knows_the_files_already(counting: Plain) -> None:
    session = Session(brief_stop(counting.pid))
    session.target.threads()
    session.memory.read(writable_page_outside_the_stacks(session.target), 8)  # type: ignore[arg-type]
    counting.wait_until_it_writes()
    later = session.retake()
    assert later is not None
    assert later.symbolizer is session.symbolizer
    assert later.memory is not session.memory
    session.target.close()


def test_a_process_that_is_about_to_crash_is_held(pausing: Plain) -> None:
    def stop() -> ProcTarget:
        stopped = ProcTarget(pausing.pid)
        stopped.threads()[0].signal = Signal(11, "SIGSEGV")  # as if it had been on its way
        return stopped

    target = SnapshotTarget(pausing.pid, "none", stop, lambda stopped: stopped.close())
    assert target.threads()[0].signal is not None
    assert set(pausing.states()) == {"t"}
    assert target.threads_that_ran() == ()
    target.close()
    assert pausing.is_untouched()


def test_the_process_ends_meanwhile(counting: Plain) -> None:
    target = brief_stop(counting.pid)
    target.threads()
    counting.process.kill()
    counting.process.wait()
    with pytest.raises(TargetGone):
        target.read(writable_page_outside_the_stacks(target), 8)
    target.close()


def test_closed(pausing: Plain) -> None:
    target = brief_stop(pausing.pid)
    pointer = target.threads()[0].registers()["rsp"]
    target.close()
    target.close()
    assert len(target.read(pointer, 8)) == 8, "what was copied stays"
    with pytest.raises(TargetError):
        target.read(writable_page_outside_the_stacks(target), 8)
    assert pausing.is_untouched()
