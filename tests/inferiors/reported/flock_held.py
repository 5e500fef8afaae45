"""flock-held: a download waits for the lock of a file that another process has.

Source: https://github.com/huggingface/huggingface_hub/issues/2543.
"""

from __future__ import annotations

import fcntl
import os
import time

import truth

file = open("model.lock", "w")
output, into = os.pipe()
holder = os.fork()
if holder == 0:
    own = open("model.lock", "w")
    fcntl.flock(own, fcntl.LOCK_EX)
    os.write(into, b".")
    time.sleep(truth.FOREVER)
os.read(output, 1)
truth.thread("main", waits=None)
truth.note(verdict="waiting-external", names=[str(holder), "model.lock"])
truth.ready()
fcntl.flock(file, fcntl.LOCK_EX)
