"""Waits that the system ends, and a futex that nobody knows."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from gdbext.diagnosis.report.wait import OwnerCertainty
from gdbext.diagnosis.waits.syscall_waits import uninterruptible_wait
from gdbext.engine.targets.base_target import KernelSide
from gdbext.engine.targets.system.peer import ChildProcess, Peer, PeerKind, ProcessState
from gdbext.engine.targets.system.procfs import NO_PROCFS
from support.programs.wait_processes import DATA, STACK, Outside, Process, wait_of

RAW = struct.pack("<iHH", 9, 1, 0) + bytes(8) + struct.pack("<QQ", 2, 500_000_000)
"""A descriptor that is polled, and at 16 a time."""
CHILDREN = {1234: "child process 1234", 0xFFFFFFFF: "any child process"}


@pytest.mark.parametrize(
    ("call", "args", "kind", "name"),
    [
        (0, (5,), "io", "read on fd 5"),
        (7, (DATA, 1, 0xFFFFFFFF), "io", "poll on fd 9"),
        (35, (DATA + 16,), "sleep", "sleeps (2.5 s) in app.so"),
        *((61, (pid,), "child-process", text) for pid, text in CHILDREN.items()),
        (34, (), "sleep", "waits for a signal (pause)"),
        (232, (4, 0, 1, 0xFFFFFFFF), "io", "epoll_wait on fd 4"),
    ],
)
def test_what_the_system_ends(call, args, kind, name):
    wait = wait_of(Process({DATA: RAW}).thread(1, [("libc.so.6", "call"), ("app.so", "work")], call=call, args=args))
    assert (wait.resource.kind.value, wait.resource.name) == (kind, name)


@pytest.mark.parametrize(
    ("number", "kind", "name"),
    [(230, "sleep", "sleeps (2.5 s) in app.so"), (7, "io", "poll on fd 9"), (0, "io", "restart_syscall")],
)
def test_a_call_that_goes_on_after_a_stop(number, kind, name):
    """restart_syscall(2), made by the function that makes all calls of libc that can be cancelled."""
    frames = [("libc.so.6", None), ("libc.so.6", None), ("libc.so.6", "call"), ("app.so", "work")]
    args = (0, 0, DATA + 16) if number == 230 else (DATA, 1, 0xFFFFFFFF)
    wait = wait_of(Process({DATA: RAW, STACK: struct.pack("<128xQ", number)}).thread(1, frames, call=219, args=args))
    assert (wait.resource.kind.value, wait.resource.name) == (kind, name)


@pytest.mark.parametrize(
    ("frame", "address"),
    [(("app.so", "spin_lock"), DATA), (("libc.so.6", "pthread_barrier_wait"), 5)],  # no futex is in the first page
)
def test_an_unknown_futex_is_said_to_be_unknown(frame, address):
    wait = wait_of(Process({DATA: bytes(64)}).thread(1, [frame], args=(address, 0, 7)))
    assert (wait.resource.kind.value, wait.resource.address) == ("futex", address)
    assert wait.certainty is OwnerCertainty.UNKNOWN


def waits_in(call, *args, procfs=NO_PROCFS):
    process = Process({DATA: bytes(64)}).thread(1, [("libc.so.6", "call"), ("app.so", "work")], call=call, args=args)
    return wait_of(process, procfs=procfs)


STOPPED = ChildProcess(50, "worker", ProcessState.STOPPED)
TWO = Outside(STOPPED, ChildProcess(51))
PIPE = Outside(other_ends={5: [STOPPED]})
PIPE_TEXT = "read on fd 5 (pipe:[7]), with process 50 (worker, stopped) at the other end"


@pytest.mark.parametrize(
    ("call", "argument", "procfs", "name", "children"),
    [
        (61, 50, TWO, "child process 50 (worker, stopped)", (STOPPED,)),
        (61, 50, NO_PROCFS, "child process 50", (ChildProcess(50),)),
        (61, 0xFFFFFFFF, TWO, "any child process (50 (worker, stopped), 51)", (STOPPED, ChildProcess(51))),
        (0, 5, PIPE, PIPE_TEXT, (STOPPED,)),
        (0, 6, PIPE, "read on fd 6", ()),
    ],
)
def test_child_processes(call, argument, procfs, name, children):
    wait = waits_in(call, argument, procfs=procfs)
    assert (wait.resource.name, wait.detail.children) == (name, children)


@pytest.mark.parametrize(
    ("call", "args", "rest", "seconds"),
    [
        *((call, (0, 0, 0, 0, DATA), quarter, 3.25) for call, quarter in ((23, 250_000), (270, 250_000_000))),
        (271, (0, 0, DATA), 250_000_000, 3.25),
        (7, (0, 0, 1500), 0, 1.5),
        (230, (1, 0, DATA), 500_000_000, 3.5),
    ],
)
def test_how_long_a_sleep_lasts(call, args, rest, seconds):
    process = Process({DATA: struct.pack("<QQ", 3, rest)})
    wait = wait_of(process.thread(1, [("libc.so.6", "call")], call=call, args=args))
    assert (wait.resource.kind.value, wait.detail.seconds) == ("sleep", seconds)
    assert wait.resource.name == f"sleeps ({seconds:g} s)"


def test_an_open_names_the_file_and_without_a_clock_an_argument_tells_how_long_a_sleep_lasts():
    """It is an absolute time, in a core."""
    process = Process({DATA: b"/run/batches\0"})
    wait = wait_of(process.thread(1, [("libc.so.6", "call")], call=257, args=(0xFFFFFF9C, DATA)))
    assert (wait.resource.name, waits_in(257, 0, 8).resource.name) == ("openat (/run/batches)", "openat")
    sleeping = Process({DATA: struct.pack("<QQ", 99_999, 0)})
    sleeping.thread(1, [("libc.so.6", "call")], call=230, args=(1, 1, DATA))
    python = SimpleNamespace(runtime=None, gils=tuple, asked_to_sleep=lambda _: 60.0)
    assert wait_of(sleeping).detail.seconds is None
    assert wait_of(sleeping, python=python).detail.seconds == 60


@pytest.mark.parametrize(("seconds", "waits"), [(0.001, False), (10.0, True)])
def test_a_moment_in_uninterruptible_sleep_is_no_wait(seconds, waits):
    """A thread that computes waits for a page, or for the lock of the memory map."""
    side = KernelSide("D", -1, "rwsem_down_read_slowpath", seconds=seconds)
    for kernel_side, expected in ((side, waits), (None, True)):  # of a core nobody knows for how long
        thread = SimpleNamespace(kernel_state="D", kernel_side=kernel_side)
        assert (uninterruptible_wait(thread) is not None) is expected


@pytest.mark.parametrize(("ending", "told"), [("exit status 1", True), ("exit status 0", False)])
def test_who_has_failed_does_not_connect(ending, told):
    """A child that failed, and that nobody has waited for, may be who should have connected."""
    listens = Peer(PeerKind.SOCKET, "a tcp socket that others connect to", state="LISTEN")
    procfs = Outside(ChildProcess(7, "worker", ProcessState.ENDED, ending=ending), other_ends={3: ()})
    procfs.peer_of = lambda link, _: listens if link else None
    accepts = Process().thread(1, [("libc.so.6", "accept4")], call=288, args=(3,))
    name = wait_of(accepts, procfs=procfs).resource.name
    assert ("; its child process 7 (worker, exit status 1) has exited" in name) is told, name
