"""Mutexes of every kind, the loader's, and the locks of the C library."""

from __future__ import annotations

import struct

import pytest

from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, ParentsThread, VanishedThread
from gdbext.diagnosis.waits.recognise import state_of
from support.programs.wait_processes import (
    DATA,
    MUTEX_STACK,
    PRIVATE,
    RESTART,
    TLS,
    Outside,
    Process,
    mutex,
    pages,
    wait_of,
)


def test_a_mutex_with_its_owner():
    process = Process({DATA: mutex(owner=2)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)).thread(2, [])
    process.symbols[DATA] = ("config_lock",)
    wait = wait_of(process)
    assert (wait.resource.kind.value, wait.resource.address, wait.resource.name) == ("mutex", DATA, "config_lock")
    assert (wait.owner, wait.certainty) == (OwnerThread(2), OwnerCertainty.RECORDED)


def test_an_owner_that_is_no_thread_is_gone():
    wait = wait_of(Process({DATA: mutex(owner=99)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)))
    assert (wait.owner, wait.certainty) == (VanishedThread(99), OwnerCertainty.RECORDED)


def test_an_owner_with_an_id_far_from_those_of_the_process_is_only_inferred():
    wait = wait_of(Process({DATA: mutex(owner=32_663)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)))
    assert (wait.owner, wait.certainty) == (VanishedThread(32_663), OwnerCertainty.INFERRED)


def _own_words(words, owner):
    """The owner of a mutex where the threads' own words in struct pthread are these."""
    process = Process({DATA: mutex(owner=owner)})
    for number, word in enumerate(words):
        tid = 101 + number
        process.thread(tid, [] if number else MUTEX_STACK, args=() if number else (DATA, PRIVATE, 2))
        process.target.regions[TLS + tid * 0x1000] = pages(bytes(0x2D0) + struct.pack("<I", word))
    return wait_of(process).owner


@pytest.mark.parametrize(
    ("words", "owner", "expected"),
    [
        ((1, 2, 3), 2, OwnerThread(102)),
        ((1, 2, 3), 9, VanishedThread(9)),
        ((1, 2, 0), 3, None),
        ((1, 2, 1 << 31), 3, None),
        ((101, 102, 7), 103, OwnerThread(103)),
        ((101, 102, 7), 7, VanishedThread(7)),
    ],
)
def test_an_owner_in_another_pid_namespace_is_gone_only_if_all_threads_are_known(words, owner, expected):
    assert _own_words(words, owner) == expected


@pytest.mark.parametrize("raw", [mutex(owner=0), mutex(owner=-5), mutex(owner=1 << 30)])
def test_an_owner_that_cannot_be_a_tid_is_unknown(raw):
    wait = wait_of(Process({DATA: raw}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)))
    assert (wait.owner, wait.certainty) == (None, OwnerCertainty.UNKNOWN)


def test_a_mutex_that_was_just_unlocked():
    process = Process({DATA: mutex(lock=0, owner=2)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2))
    wait = wait_of(process.thread(2, []))
    assert wait.being_released
    assert wait.owner is None


def _moment(lock, owner, rax=RESTART):
    process = Process({DATA: mutex(lock=lock, owner=owner)})
    return state_of(process.thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2), rax=rax).thread(2, []).snapshot())


@pytest.mark.parametrize("owner", [0, 1, 2])
def test_a_lock_word_without_waiters_tells_of_a_release_that_wakes_one(owner):
    wait = _moment(1, owner).wait
    assert wait.being_released
    assert not wait.owners
    assert "taken again" in wait.evidence[0]


def test_whoever_has_taken_it_and_not_yet_written_so_is_unknown():
    wait = _moment(2, 0).wait
    assert not wait.owners
    assert not wait.being_released


@pytest.mark.parametrize("result", [0, -11 & (1 << 64) - 1])
def test_a_thread_that_the_kernel_lets_go_waits_no_more(result):
    assert _moment(2, 1, result).state is RunState.RUNNING


@pytest.mark.parametrize("result", [RESTART, -4 & (1 << 64) - 1, -38 & (1 << 64) - 1])
def test_a_thread_in_the_call_that_owns_the_locked_mutex_waits_for_itself(result):
    assert _moment(2, 1, result).wait.owner == OwnerThread(1)


def test_a_robust_mutex_may_have_changed_hands_while_others_sleep():
    process = Process({DATA: mutex(lock=0x80000002, kind=16)}).thread(1, MUTEX_STACK, args=(DATA, 0, 0x80000003))
    wait = wait_of(process.thread(2, []).thread(3, []))
    assert (wait.owner, wait.being_released) == (OwnerThread(2), False)


def test_a_recursive_mutex_never_blocks_its_owner():
    wait = wait_of(Process({DATA: mutex(owner=1, kind=1)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)))
    assert wait.owner is None
    plain = wait_of(Process({DATA: mutex(owner=1)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)))
    assert plain.owner == OwnerThread(1)


@pytest.mark.parametrize(("kind", "waits_for"), [(0, 0xFFFFFFFF), (16, 2)])
def test_a_wait_that_is_not_one_for_such_a_mutex_names_no_owner(kind, waits_for):
    """The register or the mutex is damaged: the owner would be read at the other kind's place."""
    process = Process({DATA: mutex(lock=2, owner=2, kind=kind)}).thread(1, MUTEX_STACK, args=(DATA, 0, waits_for))
    wait = wait_of(process.thread(2, []))
    assert (wait.owner, wait.certainty) == (None, OwnerCertainty.UNKNOWN)


def test_robust_and_priority_inheriting_mutexes_keep_the_owner_in_the_lock_word():
    robust = Process({DATA: mutex(lock=0x80000002, kind=16)}).thread(1, MUTEX_STACK, args=(DATA, 0, 0x80000002))
    assert wait_of(robust.thread(2, [])).owner == OwnerThread(2)
    inheriting = Process({DATA: mutex(lock=0x80000002, kind=32)}).thread(1, MUTEX_STACK, args=(DATA, 6 | PRIVATE, 0))
    assert wait_of(inheriting.thread(2, [])).owner == OwnerThread(2)


def test_a_lock_inside_malloc_has_no_owner():
    frames = [("libc.so.6", "__lll_lock_wait_private"), ("libc.so.6", "malloc"), ("app.so", "work")]
    wait = wait_of(Process({DATA: b"\x02" + bytes(63)}).thread(1, frames, args=(DATA, PRIVATE, 2)))
    assert (wait.resource.kind.value, wait.resource.name, wait.owner) == ("libc-lock", "malloc arena", None)


def test_a_lock_inside_libc_that_the_parent_took_before_the_fork():
    """The only thread of a forked process is in no other function of libc, which could have taken it."""
    start = [("app.so", "main"), ("libc.so.6", None), ("libc.so.6", "__libc_start_main"), ("app.so", "_start")]
    inner, exits = [("libc.so.6", "__lll_lock_wait_private"), ("app.so", "more")], [("libc.so.6", "exit")]

    def owner(frames, outside, lock=2):
        process = Process({DATA: bytes([lock]) + bytes(63)}).thread(1, frames, args=(DATA, PRIVATE, 2))
        return wait_of(process, outside=outside).owner

    forked = Outside(parent=7)
    assert owner([*inner, *start], forked) == ParentsThread()
    assert owner([*inner, *start], Outside()) is None, "nothing shows a fork"
    assert owner([*inner, *exits, *start], forked) is None, "it may have taken it there itself"
    assert owner([*inner, *start], forked, lock=0) is None, "it is free by now"


def test_the_loader_lock_is_a_mutex_with_an_owner():
    frames = [
        ("libc.so.6", None),
        ("libc.so.6", "pthread_mutex_lock"),
        ("libc.so.6", "dl_iterate_phdr"),
        ("app.so", "work"),
    ]
    process = Process({DATA: mutex(owner=2, kind=1)}).thread(1, frames, args=(DATA, PRIVATE, 2)).thread(2, [])
    assert (wait_of(process).resource.kind.value, wait_of(process).owner) == ("loader-lock", OwnerThread(2))
