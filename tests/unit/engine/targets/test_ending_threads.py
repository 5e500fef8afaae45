"""Processes and threads that begin, end or are traced by others while they are examined."""

from __future__ import annotations

import errno
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gdbext.engine.arch.architectures import by_machine
from gdbext.engine.targets.live import proc_checks, ptrace, supervision
from gdbext.engine.targets.live.local_process import own_tid, read_file, read_memory
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.targets.live.supervision import stream_from_child
from gdbext.engine.targets.live.unstopped import UnstoppedProcess
from gdbext.errors import NotPermitted, TargetGone
from gdbext.tools.outcome import error_text
from gdbext.tools.probes.bpf.bpf_kernel import Circumstances, refusal
from support.programs import procfs
from support.programs.harness import wait_until

MAIN, ENDS_BEFORE_SEIZED, ENDS_BEFORE_INTERRUPTED, ENDS_WHILE_WAITED_FOR, BEGINS_MEANWHILE = range(7, 12)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> ProcTarget:
    """One whose process exists in these functions alone."""
    first = [MAIN, ENDS_BEFORE_SEIZED, ENDS_BEFORE_INTERRUPTED, ENDS_WHILE_WAITED_FOR]
    lists = [first, [MAIN, BEGINS_MEANWHILE], [MAIN, BEGINS_MEANWHILE]]

    def end_at(gone: int, tid: int) -> None:
        if tid == gone:
            raise OSError(errno.ESRCH, "No such process")

    def stats(_pid: int, _known: object) -> dict[int, tuple[str, str]]:
        return dict.fromkeys(lists.pop(0) if lists else [], ("S", "python"))

    monkeypatch.setattr(proc_checks, "thread_stats", stats)
    monkeypatch.setattr(ptrace, "seize", lambda tid: end_at(ENDS_BEFORE_SEIZED, tid))
    monkeypatch.setattr(ptrace, "interrupt", lambda tid: end_at(ENDS_BEFORE_INTERRUPTED, tid))
    monkeypatch.setattr(ptrace, "poll", lambda tid: ptrace.PtraceStop(tid == ENDS_WHILE_WAITED_FOR, 0))
    made = object.__new__(ProcTarget)
    made.pid, made.architecture, made._threads, made._unstoppable = MAIN, by_machine(62), {}, {}
    return made


def test_those_that_are_there_are_stopped(target: ProcTarget) -> None:
    target._stop_all()
    assert [thread.tid for thread in target.memory.threads()] == [MAIN, BEGINS_MEANWHILE]
    assert all(thread.stopped for thread in target._threads.values())


def test_all_end_before_they_are_stopped(target: ProcTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptrace, "poll", lambda _: ptrace.PtraceStop(True, 0))
    with pytest.raises(TargetGone, match=r"^process 7 has exited; "):
        target._stop_all()


@pytest.fixture
def traced() -> Iterator[tuple[int, int]]:
    """A process, and the one that traces it."""
    pid = os.fork()
    if not pid:
        signal.pause()
    tracer = os.fork()
    if not tracer:
        ptrace.seize(pid)
        signal.pause()
    wait_until(lambda: procfs.status(pid)["TracerPid"] == str(tracer), "it is traced")
    yield pid, tracer
    for each in (tracer, pid):
        os.kill(each, signal.SIGKILL)
        os.waitpid(each, 0)


class FakeClock:
    """Its time passes in sleeps alone; before the one that is due then, it kills the process ``ends``."""

    def __init__(self, ends: int = 0) -> None:
        self.now = 0.0
        self.ends = ends

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.ends and self.now > 0.1:
            os.kill(self.ends, signal.SIGKILL)
            os.waitid(os.P_PID, self.ends, os.WEXITED | os.WNOWAIT)
            self.ends = 0


def test_a_tracer_that_lets_go_soon_is_waited_for(traced: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    pid, tracer = traced
    clock = FakeClock(ends=tracer)
    monkeypatch.setattr(proc_checks, "time", clock)
    proc_checks.check_process(pid)
    assert procfs.status(pid)["TracerPid"] == "0"
    assert 0.1 < clock.now < 0.2


def test_a_tracer_that_stays_is_named(traced: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc_checks, "time", FakeClock())
    with pytest.raises(NotPermitted, match="already being traced by process"):
        proc_checks.check_process(traced[0])


def test_a_thread_that_was_traced_just_now_is_tried_again(target: ProcTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [MAIN]

    def seize(tid: int) -> None:
        if tid in refused:
            refused.remove(tid)
            raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(ptrace, "seize", seize)
    monkeypatch.setattr(proc_checks, "check_not_traced", lambda *_: None)
    monkeypatch.setattr(proc_checks, "thread_state", lambda *_: "S")
    target._stop_all()
    assert MAIN in [thread.tid for thread in target.memory.threads()]


def test_it_is_said_to_be_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    try:
        wait_until(lambda: procfs.state(pid, pid) == "Z", "the child has ended")
        monkeypatch.setattr(proc_checks, "check_exists", lambda _: None)  # asked just before its state changes
        with pytest.raises(TargetGone, match=f"^process {pid} has exited; "):
            proc_checks.check_architecture(pid)
    finally:
        os.waitpid(pid, 0)


def test_one_wording_wherever_it_is_noticed() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    said = set()
    for look in (proc_checks.open_memory, lambda pid: read_file(pid, "maps"), unstopped_threads):
        with pytest.raises(TargetGone) as caught:
            look(pid)
        said.add(error_text(caught.value))
    assert said == {f"process {pid} has exited; take a core of the next one (gcore PID)"}
    error = refusal("no probe", OSError(errno.ESRCH, "No such process"), Circumstances("6.18.0", 0, False, False))
    assert error.why == "the process has exited"


def unstopped_threads(pid: int) -> None:
    target = object.__new__(UnstoppedProcess)
    target.pid, target._threads = pid, None
    target.memory.threads()


def test_another_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_tid(os.getpid(), 123) == 123, "in our own nothing is read"
    monkeypatch.setattr(os.path, "samefile", lambda *_: False)
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("NSpid:"))
    assert own_tid(os.getpid(), os.getpid()) == int(line.split()[-1])
    assert own_tid(1 << 22, 1 << 22) == 1 << 22, "it has ended"


@pytest.mark.parametrize(("lives", "said"), [(True, "executed another program"), (False, "has exited;")])
def test_memory_that_has_no_user_any_more(monkeypatch: pytest.MonkeyPatch, lives: bool, said: str) -> None:
    """A descriptor of /proc/PID/mem keeps the memory from before execve(2), which is empty then."""
    pid = os.getpid() if lives else 1 << 30
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    with pytest.raises(TargetGone, match=f"process {pid} {said}"):
        read_memory(0, pid, 0x1000, 8)


RECORD = struct.Struct("<QI")


def numbers(count: int, ends: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    for number in range(0, count, 100):
        yield b"".join(RECORD.pack(each, each % 7) for each in range(number, number + 100))
    ends()


@pytest.mark.parametrize("signal", [9, 0])
def test_where_the_child_ends_early_the_work_is_done_here(signal: int) -> None:
    ours = os.getpid()

    def fail() -> None:
        if os.getpid() != ours:
            os.kill(os.getpid(), signal)
            raise ValueError("of the child")

    found = {each for piece in stream_from_child(lambda: numbers(300, fail), 12) for each in RECORD.iter_unpack(piece)}
    assert found == {(each, each % 7) for each in range(300)}


def test_who_stops_listening_leaves_no_child() -> None:
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    stream = stream_from_child(lambda: numbers(10_000_000), RECORD.size)
    next(stream)
    assert children.read_text() != before
    stream.close()
    assert children.read_text() == before


def test_what_a_child_writes_before_it_ends_comes_though_its_parent_looks_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent finds nothing to read, and when it looks again the child has written and ended; its end of the pipe
    lives on in a child of its own."""
    ours, theirs = os.pipe()
    text = bytes(20_000)

    def has_exited(_child: int) -> bool:
        os.write(theirs, text)
        return True

    monkeypatch.setattr(supervision, "_has_exited", has_exited)
    try:
        assert supervision._receive(os.getpid(), ours, 1.0) == text
    finally:
        os.close(ours)
        os.close(theirs)
