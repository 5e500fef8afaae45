"""compile-worker: the main thread waits for the result of a compilation, in a worker process that does not end.

Source: https://github.com/pytorch/pytorch/pull/181293 (torch._inductor.async_compile waits without a timeout).
"""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

import truth


def kernel():
    with open("worker.tmp", "w") as out:
        out.write(str(os.getpid()))
    os.rename("worker.tmp", "worker")
    time.sleep(truth.FOREVER)


pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
future = pool.submit(kernel)
while not os.path.exists("worker"):
    time.sleep(0.01)
with open("worker") as text:
    truth.note(verdict="waiting-external", names=[text.read()])
truth.thread("main", waits="futex")
truth.ready()
future.result()
