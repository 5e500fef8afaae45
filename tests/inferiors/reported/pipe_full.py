"""pipe-full: the parent waits for the end of a child that writes more than the pipe holds, and does not read.

Source: https://github.com/google/turbinia/issues/945. Argument: "wait", or "poll" for a loop with sleep.
"""

from __future__ import annotations

import subprocess
import sys
import time

import truth

child = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
truth.thread("main", waits=None)
truth.note(verdict="waiting-external", names=[str(child.pid), "pipe"])
while True:
    try:
        with open(f"/proc/{child.pid}/wchan") as text:
            if "pipe" in text.read():
                break
    except OSError:
        pass
    time.sleep(0.01)
truth.ready()
if sys.argv[1] == "wait":
    child.wait()
while child.poll() is None:
    time.sleep(0.5)
