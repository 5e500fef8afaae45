"""What a running thread does, counted by the system."""

from __future__ import annotations

import os
import threading

from gdbext.engine.targets.live.thread_motion import activities
from support.programs import procfs
from support.programs.harness import wait_until


def test_a_thread_that_works_and_one_that_stands_still():
    reads, writes = os.pipe()
    thread = threading.Thread(target=os.read, args=(reads, 1))
    thread.start()
    pid, mine, tid = os.getpid(), threading.get_native_id(), thread.native_id
    assert tid is not None
    wait_until(lambda: procfs.syscall(pid, tid)[0] in map(str, procfs.SYSCALLS["read"]), "the thread reads")
    before = activities(pid)
    with open("/dev/null", "wb") as nowhere:
        nowhere.write(bytes(100_000))
    wait_until(lambda: activities(pid)[mine].nanoseconds > before[mine].nanoseconds, "our time is counted")
    after = activities(pid)
    os.write(writes, b"x")
    thread.join()
    os.close(reads)
    os.close(writes)
    assert after[tid] == before[tid]
    assert after[mine].bytes_moved - before[mine].bytes_moved >= 100_000


def test_nobody_does_nothing():
    assert activities(1 << 30) == {}
