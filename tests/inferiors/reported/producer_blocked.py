"""producer-blocked: the main thread asks a queue again and again; the thread that fills it reads from a pipe.

Source: https://github.com/RolnickLab/ami-data-companion/issues/140 (a loader whose pin memory thread never delivers).
"""

from __future__ import annotations

import os
import queue
import threading
import time

import truth

output, into = os.pipe()
batches = queue.Queue(2)
child = os.fork()
if child == 0:
    time.sleep(truth.FOREVER)
os.close(into)


def pin_memory_loop(source, out_queue):
    truth.thread("producer", waits="read")
    while True:
        out_queue.put(os.read(source, 1))


def next_batch(data_queue):
    while True:
        try:
            return data_queue.get(timeout=5)
        except queue.Empty:
            continue


threading.Thread(target=pin_memory_loop, args=(output, batches), name="pin-memory", daemon=True).start()
truth.thread("main", waits="futex")
truth.note(verdict="waiting-external", names=["queue.Queue", "pin-memory", str(child)])
truth.ready()
next_batch(batches)
