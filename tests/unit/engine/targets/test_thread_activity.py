"""What a running thread does, counted by the system."""

from __future__ import annotations

import os
import threading
import time

from gdbext.engine.targets.live.thread_motion import activities


def test_a_thread_that_works_and_one_that_stands_still():
    done, ready = threading.Event(), threading.Event()
    tids = []

    def wait() -> None:
        tids.append(threading.get_native_id())
        ready.set()
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    time.sleep(0.05)
    before = activities(os.getpid())
    with open("/dev/null", "wb") as nowhere:
        nowhere.write(bytes(100_000))
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    after = activities(os.getpid())
    done.set()
    thread.join()
    mine = threading.get_native_id()
    assert after[tids[0]] == before[tids[0]]
    assert after[mine].bytes_moved - before[mine].bytes_moved >= 100_000
    assert after[mine].nanoseconds - before[mine].nanoseconds >= 10_000_000


def test_nobody_does_nothing():
    assert activities(1 << 30) == {}
