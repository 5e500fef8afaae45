"""semaphore-dead: a process was killed inside a multiprocessing.Lock; everybody else waits for it.

Source: https://github.com/tqdm/tqdm/pull/1751, https://github.com/python/cpython/issues/87971.
"""

from __future__ import annotations

import multiprocessing
import os
import signal

import truth


def work(lock):
    with lock:
        os.kill(os.getpid(), signal.SIGKILL)


context = multiprocessing.get_context("fork")
lock = context.Lock()
child = context.Process(target=work, args=(lock,))
child.start()
child.join()
truth.thread("main", waits="futex")
truth.note(verdict="waiting-external", names=["no other process that has it is alive"])
truth.ready()
with lock:
    pass
