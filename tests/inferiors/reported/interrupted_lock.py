"""interrupted-lock: what interrupts a thread wants the lock that the interrupted code has.

Source: https://github.com/Delgan/loguru/issues/390 and https://github.com/patroni/patroni/pull/3413 ("signal"),
https://github.com/Delgan/loguru/issues/712 and https://github.com/getsentry/sentry-python/issues/803 ("del"),
https://github.com/python/cpython/issues/76757 ("weakref").
Argument: what interrupts, and after a "+" how the lock is taken: "with", "finally", "queue" or "condition".
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
import weakref

import truth

how, _, taken = (sys.argv[1] if len(sys.argv) > 1 else "signal+with").partition("+")
lock = threading.Lock()
condition = threading.Condition(lock)
messages = queue.Queue()


class Item:
    def __del__(self):
        if how == "del":
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
    item = Item()
    watch = weakref.ref(item, emit) if how == "weakref" else None
    del item
    return watch


class Buffer(queue.Queue):
    def _put(self, item):
        interrupt()
        super()._put(item)


if taken == "with":
    with lock:
        interrupt()
elif taken == "finally":
    lock.acquire()
    try:
        interrupt()
    finally:
        lock.release()
elif taken == "condition":
    with condition:
        interrupt()
else:
    messages = Buffer()
    messages.put("first")
