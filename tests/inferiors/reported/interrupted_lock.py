"""interrupted-lock: what interrupts a thread wants the lock that the interrupted code has.

Source: https://github.com/Delgan/loguru/issues/390 and https://github.com/patroni/patroni/pull/3413 (a signal),
https://github.com/Delgan/loguru/issues/712 and https://github.com/getsentry/sentry-python/issues/803 (__del__).
Argument: "signal+with", "signal+queue" or "del+finally": what interrupts, and how the lock is taken.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading

import truth

how, _, taken = sys.argv[1].partition("+")
lock = threading.Lock()


class Item:
    def __del__(self):
        emit()


def emit(*_):
    """Called while the lock is held: it can never get it."""
    if taken == "queue":
        messages.put("again")
    else:
        with lock:
            pass


def interrupt():
    truth.thread("main", waits="futex", waits_for="python-lock", holds="python-lock")
    truth.note(verdict="self-deadlock", cycle=["main"], names=["interrupted the code that holds it"])
    truth.ready()
    if how == "signal":
        signal.signal(signal.SIGUSR1, emit)
        signal.raise_signal(signal.SIGUSR1)
    Item()


class Buffer(queue.Queue):
    def _put(self, item):
        interrupt()


messages = Buffer()
if taken == "with":
    with lock:
        interrupt()
elif taken == "finally":
    lock.acquire()
    try:
        interrupt()
    finally:
        lock.release()
else:
    messages.put("first")
