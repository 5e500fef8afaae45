"""feeder-full: a child has put more into a multiprocessing.Queue than a pipe holds; its parent joins it before reading.

Source: https://github.com/python/cpython/issues/73983, https://github.com/n8n-io/n8n/pull/19084.
Argument: which of the two processes is looked at, "parent" or "child".
"""

from __future__ import annotations

import multiprocessing
import os
import sys

import truth


def work(queue):
    if sys.argv[1] == "child":
        truth.thread("main", waits="futex")
        truth.note(verdict="waiting-external", names=[str(os.getppid())])
    queue.put(b"x" * 1_000_000)
    if sys.argv[1] == "child":
        truth.ready()


context = multiprocessing.get_context("fork")
queue = context.Queue()
child = context.Process(target=work, args=(queue,))
child.start()
if sys.argv[1] == "parent":
    truth.thread("main", waits="wait")
    truth.note(verdict="waiting-external", names=[str(child.pid)])
    truth.ready()
child.join()
