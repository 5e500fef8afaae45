"""Mutexes of every kind, the loader's, locks of the C library, condition variables, semaphores, joins and barriers."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, ParentsThread, VanishedThread
from gdbext.diagnosis.waits.recognize import state_of
from gdbext.engine.targets.system.peer import ChildProcess, ProcessState
from support.programs import wait_processes
from support.programs.wait_processes import BITSET, DATA, MUTEX_STACK, PRIVATE, TLS, Outside, Process, mutex, wait_of

RECORDED, INFERRED, UNKNOWN = OwnerCertainty.RECORDED, OwnerCertainty.INFERRED, OwnerCertainty.UNKNOWN
ROBUST, INHERITS = {"lock": 0x80000002, "kind": 16}, {"lock": 0x80000002, "kind": 32}


@pytest.mark.parametrize(
    ("facts", "args", "owner", "certainty", "being_released"),
    [
        ({"owner": 2}, (PRIVATE, 2), OwnerThread(2), RECORDED, False),
        ({"owner": 1}, (PRIVATE, 2), OwnerThread(1), INFERRED, False),  # it waits for itself
        ({"owner": 99}, (PRIVATE, 2), VanishedThread(99), RECORDED, False),
        ({"owner": 32_663}, (PRIVATE, 2), VanishedThread(32_663), INFERRED, False),  # far from those of the process
        *(({"owner": owner}, (PRIVATE, 2), None, UNKNOWN, False) for owner in (0, -5, 1 << 30)),  # 0: not yet written
        ({"owner": 2, "lock": 0}, (PRIVATE, 2), None, UNKNOWN, True),
        # A release that wakes one leaves no waiters.
        *(({"owner": owner, "lock": 1}, (PRIVATE, 2), None, UNKNOWN, True) for owner in (0, 1, 2)),
        ({"owner": 1, "kind": 1}, (PRIVATE, 2), None, UNKNOWN, False),  # a recursive one never blocks its owner
        # It may change hands while others sleep.
        *((ROBUST, (0, word), OwnerThread(2), RECORDED, False) for word in (0x80000002, 0x80000003)),
        (INHERITS, (6 | PRIVATE, 0), OwnerThread(2), RECORDED, False),
        # A damaged register or mutex: the owner would be read at the other kind's place.
        ({"owner": 2}, (0, 0xFFFFFFFF), None, UNKNOWN, False),
        ({"owner": 2, "kind": 16}, (0, 2), None, UNKNOWN, False),
    ],
)
def test_owners(facts, args, owner, certainty, being_released):
    process = Process({DATA: mutex(**facts)}).thread(1, MUTEX_STACK, args=(DATA, *args)).thread(2, [])
    process.symbols[DATA] = ("config_lock",)
    wait = wait_of(process.thread(3, []))
    assert (wait.resource.kind.value, wait.resource.address, wait.resource.name) == ("mutex", DATA, "config_lock")
    assert (wait.owner, wait.certainty, wait.being_released) == (owner, certainty, being_released)
    assert ("taken again" in " ".join(wait.evidence)) == (facts.get("lock") == 1)


@pytest.mark.parametrize(
    ("words", "owner", "expected"),
    [
        *(((1, 2, 3), owner, found) for owner, found in ((2, OwnerThread(102)), (9, VanishedThread(9)))),
        *(((1, 2, last), 3, None) for last in (0, 1 << 31)),
        *(((101, 102, 7), owner, found) for owner, found in ((103, OwnerThread(103)), (7, VanishedThread(7)))),
    ],
)
def test_an_owner_in_another_pid_namespace_is_gone_only_if_all_threads_are_known(words, owner, expected):
    process = Process({DATA: mutex(owner=owner)})
    for tid, word in enumerate(words, 101):
        process.thread(tid, MUTEX_STACK if tid == 101 else [], args=(DATA, PRIVATE, 2))
        process.target.regions[TLS + tid * 0x1000] = wait_processes.pages(bytes(0x2D0) + struct.pack("<I", word))
    assert wait_of(process).owner == expected


@pytest.mark.parametrize(("result", "waits"), [(0, False), (-11, False), (-516, True), (-4, True), (-38, True)])
def test_a_thread_that_the_kernel_lets_go_waits_no_more(result, waits):
    more = {"args": (DATA, PRIVATE, 2), "rax": result & (1 << 64) - 1}
    process = Process({DATA: mutex(owner=1)}).thread(1, MUTEX_STACK, **more)
    found = state_of(process.thread(2, []).snapshot())
    assert found.state is (RunState.WAITING if waits else RunState.RUNNING)
    assert not waits or found.wait.owner == OwnerThread(1)


def test_a_lock_inside_malloc_has_no_owner_and_the_loaders_is_a_mutex_with_one():
    frames = [("libc.so.6", "__lll_lock_wait_private"), ("libc.so.6", "malloc"), ("app.so", "work")]
    wait = wait_of(Process({DATA: b"\x02" + bytes(63)}).thread(1, frames, args=(DATA, PRIVATE, 2)))
    assert (wait.resource.kind.value, wait.resource.name, wait.owner) == ("libc-lock", "malloc arena", None)
    frames = [*MUTEX_STACK[:2], ("libc.so.6", "dl_iterate_phdr"), ("app.so", "work")]
    process = Process({DATA: mutex(owner=2, kind=1)}).thread(1, frames, args=(DATA, PRIVATE, 2)).thread(2, [])
    assert (wait_of(process).resource.kind.value, wait_of(process).owner) == ("loader-lock", OwnerThread(2))


def test_a_lock_inside_libc_that_the_parent_took_before_the_fork():
    """The only thread of a forked process is in no other function of libc, which could have taken it."""
    start = [("app.so", "main"), ("libc.so.6", None), ("libc.so.6", "__libc_start_main"), ("app.so", "_start")]
    inner, exits = [("libc.so.6", "__lll_lock_wait_private"), ("app.so", "more")], [("libc.so.6", "exit")]

    def owner(frames, procfs, lock=2):
        process = Process({DATA: bytes([lock]) + bytes(63)}).thread(1, frames, args=(DATA, PRIVATE, 2))
        return wait_of(process, procfs=procfs).owner

    forked = Outside(parent=7)
    assert owner([*inner, *start], forked) == ParentsThread()
    assert owner([*inner, *start], Outside()) is None, "nothing shows a fork"
    assert owner([*inner, *exits, *start], forked) is None, "it may have taken it there itself"
    assert owner([*inner, *start], forked, lock=0) is None, "it is free by now"


GUARD = [("libc.so.6", "syscall"), ("app.so", "__cxa_guard_acquire"), ("app.so", "_Z4workv")]
INITIALISES = [("libc.so.6", "pause"), ("app.so", "_Z4workv")]


@pytest.mark.parametrize(
    ("others", "owner", "certainty"),
    [
        ([INITIALISES], OwnerThread(2), INFERRED),
        ([INITIALISES, INITIALISES], None, UNKNOWN),
        ([GUARD], None, UNKNOWN),  # it waits, too
    ],
)
def test_a_static_is_initialized_by_the_only_thread_inside_its_function(others, owner, certainty):
    process = Process({DATA: struct.pack("<II", 0x10100, 0)}).thread(1, GUARD, args=(DATA, 0, 0x10100))
    for tid, frames in enumerate(others, 2):
        process.thread(tid, frames, args=(DATA, 0, 0x10100))
    process.symbols[DATA] = ("_ZGVZ4workvE5value",)
    wait = wait_of(process)
    assert (wait.resource.kind.value, wait.resource.name) == ("static-init", "work()::value")
    assert (wait.owner, wait.certainty) == (owner, certainty)


CONDVAR = [("libc.so.6", None), ("libc.so.6", "pthread_cond_wait"), ("app.so", "work")]


@pytest.mark.parametrize("offset", [40, 44, 32, 36])
def test_a_condition_variable_found_in_the_waiters_frames(offset):
    process = Process({DATA: bytes(64)}).thread(1, CONDVAR, args=(DATA + offset, BITSET, 0), registers={"rbx": DATA})
    wait = wait_of(process)
    assert (wait.resource.kind.value, wait.resource.address, wait.timed) == ("condvar", DATA, False)


def test_a_condition_variable_names_its_mutex_when_there_is_one_candidate():
    objects, registers = {DATA: bytes(64), 0x40000: mutex(lock=0, users=1)}, {"rbx": DATA, "r12": 0x40000}
    companion = wait_of(
        Process(objects).thread(1, CONDVAR, args=(DATA + 40, BITSET, 0), registers=registers)
    ).detail.mutex
    assert companion is not None
    assert companion.address == 0x40000


def test_a_rwlock_with_a_writer_and_readers_that_are_inferred_only_when_their_number_fits():
    raw = struct.pack("<IIIIIIiI", 2, 0, 1, 2, 0, 0, 2, 0) + bytes(24)
    frames = [("libc.so.6", "pthread_rwlock_rdlock"), ("app.so", "work")]
    process = Process({DATA: raw}).thread(1, frames, args=(DATA + 8, PRIVATE, 3), registers={"rbx": DATA})
    wait = wait_of(process.thread(2, []))
    assert (wait.resource.kind.value, wait.resource.address, wait.owner) == ("rwlock", DATA, OwnerThread(2))
    raw = struct.pack("<IIIIIIiI", 2 << 3, 1, 0, 1, 0, 0, 0, 0) + bytes(24)
    frames = [("libc.so.6", "pthread_rwlock_wrlock"), ("app.so", "work")]
    reads = [("app.so", "reads"), ("app.so", "main")]
    process = Process({DATA: raw}).thread(1, frames, args=(DATA + 12, PRIVATE, 1), registers={"rbx": DATA})
    process.thread(2, reads, registers={"rbx": DATA})
    assert wait_of(process).owners == ()
    process.thread(3, reads, registers={"r12": DATA})
    wait = wait_of(process)
    assert (wait.owners, wait.certainty) == ((OwnerThread(2), OwnerThread(3)), OwnerCertainty.INFERRED)


@pytest.mark.parametrize(("waiters", "kind"), [(1, "semaphore"), (0, "futex")])
def test_a_semaphore_without_any_name(waiters, kind):
    frames = [("libc.so.6", None), ("libc.so.6", None), ("app.so", "work")]
    process = Process({DATA: struct.pack("<IIII", 0, waiters, 0, 0)}).thread(1, frames, args=(DATA, BITSET, 0))
    assert wait_of(process).resource.kind.value == kind


@pytest.mark.parametrize(
    ("word", "value", "owners"),
    [
        (0x2D0, 2, (OwnerThread(2),)),  # the thread's id
        (0x628, 2, (OwnerThread(2),)),  # its state, since glibc 2.43
        (0x628, 1, (OwnerThread(2),)),
        (0x628, 3, ()),
        (0x62C, 2, ()),
    ],
)
def test_a_join_is_proven_by_the_address_of_its_word(word, value, owners):
    process = Process().thread(1, [("libc.so.6", None)], args=(TLS + 2 * 0x1000 + word, 265, value)).thread(2, [])
    wait = wait_of(process)
    assert (wait.owners, wait.resource.kind.value == "join") == (owners, bool(owners))
    assert (wait.certainty is OwnerCertainty.RECORDED) is bool(owners)


def test_a_barrier_says_how_many_have_arrived():
    raw = struct.pack("<IIIII", 3, 0, 4, 0, 0)
    process = Process({DATA: raw}).thread(1, [("libc.so.6", "pthread_barrier_wait")], args=(DATA + 4, PRIVATE, 0))
    assert wait_of(process).resource.name == "3 of 4 threads have arrived"


def test_a_semaphore_that_nobody_else_has_names_the_children_that_have_ended():
    """One of them may be who should have posted it: an Event of multiprocessing whose setter failed."""
    frames = [("libc.so.6", None), ("libc.so.6", "sem_wait"), ("app.so", "work")]
    process = Process({DATA: struct.pack("<QQ", 1 << 32, 0)}).thread(1, frames, args=(DATA, BITSET & ~PRIVATE, 0))
    process.mapping_at = lambda _: SimpleNamespace(permissions="rw-s", path="/dev/shm/sem.mp-1")
    alone = Outside(ChildProcess(7, "server", ProcessState.ENDED, ending="exit status 1"))
    alone.sharers = lambda _: ()
    name = wait_of(process, procfs=alone).resource.name
    assert name.endswith(
        "but every other process that mapped it has exited; its child process 7 (server, exit status 1) has exited"
    )
