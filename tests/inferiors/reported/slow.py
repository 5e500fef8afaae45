"""slow: a pool's only worker waits for futures that are made by hand, and set by a thread outside of the pool."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import truth

requests = queue.Queue()


def answer():
    while True:
        future = requests.get()
        time.sleep(0.05)
        future.set_result(1)


def ask(_):
    future = Future()
    requests.put(future)
    return future.result()


threading.Thread(target=answer, daemon=True).start()
truth.note(verdict="idle", names=["still to come from"])
with ThreadPoolExecutor(1) as workers:
    truth.ready()
    while True:
        list(workers.map(ask, range(8)))
