"""What can be told of the main thread's wait, and of those that it leads to, from what is at hand."""

from __future__ import annotations

import struct

import pytest

from gdbext.cpython.sync.polled_objects import PolledKind, PolledObject
from gdbext.cpython.threads.object_text import HandledError
from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.report.wait_detail import Refused
from gdbext.diagnosis.waits.polling import refused_by
from gdbext.diagnosis.waits.recognize import follow_main_thread, state_of
from gdbext.engine.targets.system.peer import ChildProcess
from support.programs.wait_processes import BITSET, DATA, LOCK_STACK, Outside, Process, Python, python_wait

SLEEP = 35
LINE = Frame(1, FrameKind.PYTHON, None, "wait", file="/app/main.py", line=1)
CHILD = ChildProcess(50, "worker")
FILES = {"/lock": "/lock (which exists)", "/held": "/held, locked by process 9"}
FILES |= {"/none": "/none (which does not exist)", "m.lock": "/work/m.lock (which does not exist)"}


def sleeping(*polled_objects):
    process = Process().thread(1, [("libc.so.6", "nanosleep")], call=SLEEP, python=[LINE])
    thread = process.snapshot(1, Python(polled_objects=polled_objects, users={0x99: [1, 7]}), Outside(CHILD))
    return follow_main_thread(thread.process, {1: state_of(thread)})[1].wait


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        *((PolledObject(PolledKind.FILE, "path", 1, path=path), f"the file {text}") for path, text in FILES.items()),
        (PolledObject(PolledKind.PROCESS, "child", 1, pid=50), "the process 50 (worker)"),
        (PolledObject(PolledKind.PROCESS, "child", 1, pid=51), "the process 51"),
        (PolledObject(PolledKind.THREAD, "worker", 1, ident=7), "the thread 7"),
        (PolledObject(PolledKind.FLAG, "stopped", 1, value=False), "stopped (which is False)"),
    ],
)
def test_what_a_loop_that_sleeps_looks_at(seen, text):
    wait = sleeping(seen)
    assert wait.detail.looks_for == text
    assert wait.phrase.endswith(f"in a loop that polls {text}")
    assert wait.detail.polls_file == (seen.polled_as is PolledKind.FILE)
    assert wait.detail.expects == ((7,) if seen.polled_as is PolledKind.THREAD else ())
    assert [child.pid for child in wait.detail.children] == ([seen.pid] if seen.pid else [])
    assert (sleeping().detail.looks_for, sleeping().phrase) == ("", "sleeps")


def test_a_queue_is_filled_by_who_has_it_and_does_not_wait_for_it():
    process = Process({DATA: struct.pack("<IIII", 0, 1, 0, 0)})
    for tid in (1, 2, 3):
        process.thread(tid, LOCK_STACK, args=(DATA, BITSET, 0))
    process.thread(4, [("libc.so.6", "read")], call=0, args=(5,))
    python = Python(wait=python_wait("queue"), users={0x9000: [1, 2, 4]})
    snapshot = process.snapshot(1, python, Outside(other_ends={5: [CHILD]}))
    states = {thread.tid: state_of(thread) for thread in snapshot.process.threads}
    assert follow_main_thread(snapshot.process, states)[1].wait.detail.expects == (4,)
    assert states[1].wait.detail.expects == ()


@pytest.mark.parametrize(
    ("classes", "number", "message", "expected"),
    [
        (("OSError",), 28, "", Refused.SPACE),
        (("OSError",), 24, "", Refused.DESCRIPTORS),
        (("BlockingIOError", "OSError"), 11, "", None),
        (("gaierror", "OSError"), -2, "", Refused.PEER),
        (("KeyError", "LookupError"), 28, "", None),
        (("RuntimeError",), None, "can't start new thread", Refused.TASKS),
        (("RuntimeError",), None, "boom", None),
        (("MemoryError",), None, "", Refused.MEMORY),
    ],
)
def test_what_an_exception_says_was_refused(classes, number, message, expected):
    assert refused_by(HandledError("", classes, number, message)) is expected
