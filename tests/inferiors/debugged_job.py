"""debugged_job: two threads dispatch for ever, an addition and a multiplication, and count how far they have come; a
third loads and unloads a library as often as it is asked to ("loads": all the time, twenty times a second).

The counts are 8 bytes each in a file that is mapped; the fourth is how many libraries are asked for. A debugger that
leaves anything behind is noticed by the first that comes there.
"""

import _ctypes
import ctypes
import mmap
import sys
import threading
import time
from pathlib import Path

import torch
import truth

torch.set_num_threads(1)
LIBRARY = "libBrokenLocale.so.1"
file = Path(f"{truth.path()}.counts")
file.write_bytes(bytes(32))
with file.open("r+b") as opened:
    counts = memoryview(mmap.mmap(opened.fileno(), 32)).cast("Q")
ones = torch.ones(4)


def load():
    _ctypes.dlclose(ctypes.CDLL(LIBRARY)._handle)


def loads():
    while True:
        if counts[2] < counts[3] or sys.argv[1:] == ["loads"]:
            load()
            counts[2] += 1
        time.sleep(0.05)


def forever(number, work):
    while True:
        work(ones, ones)
        counts[number] += 1
        time.sleep(0.002)


counts[3] = 1
threading.Thread(target=forever, args=(1, torch.mul), daemon=True).start()
threading.Thread(target=loads, daemon=True).start()
truth.thread("main", waits=None)
truth.note(verdict="busy", counts=str(file))
truth.until(lambda: all(counts[1:3]))
truth.ready()
forever(0, torch.add)
