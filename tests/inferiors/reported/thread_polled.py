"""thread-polled: the main thread looks at a thread every second; that one waits for a lock of a third one.

Source: https://github.com/rohanpm/more-executors/issues/114, https://github.com/tqdm/tqdm/pull/1751.
Argument: "join" (with a timeout), "event" (with a timeout) or "alive" (sleep).
"""

from __future__ import annotations

import sys
import threading
import time

import truth

lock, done, taken = threading.Lock(), threading.Event(), threading.Event()


def keep():
    truth.thread("keeper", waits=None)
    lock.acquire()
    try:
        taken.set()
        time.sleep(truth.FOREVER)
    finally:
        lock.release()


def work():
    truth.thread("worker", waits="futex")
    taken.wait()
    lock.acquire()
    done.set()


threading.Thread(target=keep, name="keeper", daemon=True).start()
worker = threading.Thread(target=work, name="worker", daemon=True)
worker.start()
taken.wait()
truth.thread("main", waits=None)
truth.note(verdict="blocked", names=["keeper", "worker"])
truth.ready()
if sys.argv[1] == "join":
    while worker.is_alive():
        worker.join(timeout=1)
elif sys.argv[1] == "event":
    while not done.wait(1):
        pass
else:
    while worker.is_alive():
        time.sleep(0.5)
