"""pool-killed: a worker of a multiprocessing.Pool was killed; the pool started another one, but the job is lost.

Source: https://github.com/python/cpython/issues/96062, https://github.com/mapillary/OpenSfM/issues/190.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import truth


def job(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


pool = multiprocessing.get_context("fork").Pool(2)
before = {process.pid for process in pool._pool}
result = pool.map_async(job, range(4), chunksize=1)
while {process.pid for process in pool._pool} == before or len(pool._pool) < 2:
    time.sleep(0.01)
truth.thread("main", waits="futex")
truth.note(verdict="waiting-external", names=[str(process.pid) for process in pool._pool] + ["lost"])
truth.ready()
result.get()
