"""shutdown-waits: the program is over, and Python waits for a worker of a pool that a timeout has given up.

Source: https://github.com/huggingface/smolagents/pull/2711.
Argument "thread": it waits for a thread that is no daemon and reads a queue (https://github.com/jaredrhod/backtalk/issues/24).
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, TimeoutError

import truth

output, into = os.pipe()
pool = ThreadPoolExecutor(1)


def evaluate():
    truth.thread("worker", waits="read")
    os.read(output, 1)


def consume():
    truth.thread("worker", waits="futex")
    queue.Queue().get()


if sys.argv[1:] == ["thread"]:
    threading.Thread(target=consume, name="consumer").start()
    truth.thread("main", waits="futex")
    truth.note(verdict="blocked", names=["MainThread", "shutting down", "consumer", "queue"])
    truth.ready()
    sys.exit()
future = pool.submit(evaluate)
with contextlib.suppress(TimeoutError):
    future.result(timeout=0.2)
truth.thread("main", waits="futex")
truth.note(verdict="waiting-external", names=["ThreadPoolExecutor-0_0", "pipe"])
truth.ready()
