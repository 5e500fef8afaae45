"""lock-polled: a download tries for the lock of a file again and again, as filelock does, while another process has it.

Sources: https://github.com/huggingface/huggingface_hub/issues/2543, https://github.com/huggingface/datasets/issues/3983.
"""

from __future__ import annotations

import fcntl
import os
import time

import truth


def try_lock(path):
    file = open(path, "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def acquire(path, poll_interval):
    lock_filename = path
    while True:
        file = try_lock(lock_filename)
        if file is not None:
            return file
        time.sleep(poll_interval)


place = os.path.join(os.getcwd(), "model.lock")
output, into = os.pipe()
holder = os.fork()
if holder == 0:
    held = try_lock(place)
    os.write(into, b".")
    time.sleep(truth.FOREVER)
os.read(output, 1)
truth.thread("main", waits=None)
truth.note(verdict="waiting-external", names=[str(holder), "model.lock", "has locked"])
truth.ready()
acquire(place, 0.5)
