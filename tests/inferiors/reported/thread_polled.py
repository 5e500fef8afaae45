"""thread-polled: the main thread looks at a thread every second; that one waits for a lock of a third one.

Source: https://github.com/rohanpm/more-executors/issues/114, https://github.com/tqdm/tqdm/pull/1751.
"""

from __future__ import annotations

import threading
import time

import truth

lock, taken = threading.Lock(), threading.Event()


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


threading.Thread(target=keep, name="keeper", daemon=True).start()
worker = threading.Thread(target=work, name="worker", daemon=True)
worker.start()
taken.wait()
truth.thread("main", waits=None)
truth.note(verdict="blocked", names=["keeper", "worker"])
truth.ready()
while worker.is_alive():
    worker.join(timeout=1)
