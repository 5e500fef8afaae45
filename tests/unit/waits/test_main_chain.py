"""What can be told of the main thread's wait, and of those that it leads to, from what is at hand."""

from __future__ import annotations

import struct

import pytest
from wait_processes import BITSET, DATA, LOCK_STACK, Outside, Process, Python, python_wait

from gdbext.cpython.sync.at_hand import AtHand, Look
from gdbext.model.threads.child_process import ChildProcess
from gdbext.model.threads.frame import Frame, FrameKind
from gdbext.waits.main_chain import explain
from gdbext.waits.recognise import state_of

SLEEP = 35
LINE = Frame(1, FrameKind.PYTHON, "wait", file="/app/main.py", line=1)
CHILD = ChildProcess(50, "worker")


def sleeping(*looked_at):
    process = Process().thread(1, [("libc.so.6", "nanosleep")], call=SLEEP, python=[LINE])
    thread = process.snapshot(1, Python(looked_at=looked_at, users={0x99: [1, 7]}), Outside(CHILD))
    return explain(thread.process, {1: state_of(thread)})[1].wait


@pytest.mark.parametrize(("seen", "text"), [
    (AtHand(Look.FILE, "path", 1, path="/lock"), "the file /lock (which exists)"),
    (AtHand(Look.FILE, "path", 1, path="/held"), "the file /held, which process 9 has locked"),
    (AtHand(Look.FILE, "path", 1, path="/none"), "the file /none (which does not exist)"),
    (AtHand(Look.FILE, "path", 1, path="model.lock"), "the file /work/model.lock (which does not exist)"),
    (AtHand(Look.PROCESS, "child", 1, pid=50), "the process 50 (worker)"),
    (AtHand(Look.PROCESS, "child", 1, pid=51), "the process 51"),
    (AtHand(Look.THREAD, "worker", 1, ident=7), "the thread 7"),
    (AtHand(Look.FLAG, "stopped", 1, value=False), "stopped (which is False)"),
])  # fmt: skip
def test_what_a_loop_that_sleeps_looks_at(seen, text):
    wait = sleeping(seen)
    assert wait.looks_for == text
    assert wait.phrase.endswith(f"looks again and again at {text}")
    assert wait.looks_outside == (seen.look is Look.FILE)
    assert wait.expects == ((7,) if seen.look is Look.THREAD else ())
    assert [child.pid for child in wait.children] == ([seen.pid] if seen.pid else [])


def test_a_sleep_that_looks_at_nothing_is_a_sleep():
    assert (sleeping().looks_for, sleeping().phrase) == ("", "sleeps")


def test_a_queue_is_filled_by_who_has_it_and_does_not_wait_for_it():
    process = Process({DATA: struct.pack("<IIII", 0, 1, 0, 0)})
    for tid in (1, 2, 3):
        process.thread(tid, LOCK_STACK, args=(DATA, BITSET, 0))
    process.thread(4, [("libc.so.6", "read")], call=0, args=(5,))
    python = Python(wait=python_wait("queue"), users={0x9000: [1, 2, 4]})
    snapshot = process.snapshot(1, python, Outside(other_ends={5: [CHILD]}))
    states = {thread.tid: state_of(thread) for thread in snapshot.process.threads}
    assert explain(snapshot.process, states)[1].wait.expects == (4,)
    assert states[1].wait.expects == ()
