"""forked-lock: another thread had a lock when the process forked; in the child nobody can ever release it.

Source: https://github.com/getsentry/sentry-python/pull/6159, https://github.com/python/cpython/pull/4071.
"""

from __future__ import annotations

import os
import threading
import time

import truth


class Monitor:
    def __init__(self):
        self._thread_lock = threading.Lock()

    def keep(self):
        with self._thread_lock:
            taken.set()
            time.sleep(truth.FOREVER)

    def ensure_running(self):
        with self._thread_lock:
            pass


taken = threading.Event()
monitor = Monitor()
threading.Thread(target=monitor.keep, daemon=True).start()
taken.wait()
if os.fork() == 0:
    truth.thread("main", waits="futex")
    lock = truth.hexadecimal(id(monitor._thread_lock))
    truth.note(verdict="orphaned-lock", mutex=lock, owner=0, names=["at the moment of the fork"])
    truth.ready()
    monitor.ensure_running()
os.wait()
