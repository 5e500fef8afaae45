"""Programs that the machine around them holds up, and a healthy one. Arguments: the function, and a file.

``inside``: a thread that works without end, for a quota to be put around it, in a namespace of control groups of its
own, as a container is.
"""

import ctypes
import gc
import hashlib
import mmap
import os
import sqlite3
import subprocess
import sys
import threading
import time

import truth

DATA = bytes(1 << 20)


def computes():
    while True:
        hashlib.sha256(DATA).digest()  # without the GIL


def inside():
    new_cgroup = 0x02000000  # CLONE_NEWCGROUP (linux/sched.h)
    truth.note(inside=ctypes.CDLL(None).unshare(new_cgroup) == 0)
    truth.ready()
    computes()


def pinned():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for _ in range(2):
        threading.Thread(target=computes, daemon=True).start()
    truth.ready()
    computes()


def collects():
    kept = [[number] for number in range(300_000)]
    truth.note(objects=len(kept))
    truth.ready()
    while True:
        gc.collect()


def tasks():
    """Child processes that are tried again and again, at the limit that the test sets."""
    truth.ready()
    while True:
        try:
            subprocess.run(["true"], check=False)
        except OSError:
            time.sleep(0.1)


def rereads(path):
    """Once there is FILE.go, pages of the file are read again and again; once there is FILE.more, memory is taken."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        truth.ready()
        while not os.path.exists(f"{path}.go"):
            time.sleep(0.05)
        while not os.path.exists(f"{path}.more"):
            sum(pages[at] for at in range(0, len(pages), mmap.PAGESIZE))
    kept = []
    while True:
        kept.append(bytearray(1 << 20))


def database(path):
    """SQLite waits for the lock of the file, which another process has, and then another connection."""
    connection = sqlite3.connect(path, timeout=10_000)
    truth.ready()
    with connection:
        connection.execute("insert into t values (1)")
    with connection:
        connection.execute("insert into t values (2)")
        sqlite3.connect(path, timeout=10_000).execute("insert into t values (3)")


def team():
    import torch

    torch.set_num_threads(8 * (os.cpu_count() or 1))
    one = torch.ones(1 << 16)
    one.sin()
    truth.ready()
    while True:
        one.sin()


def subnormals(what="mul"):
    import torch

    torch.set_num_threads(1)
    small = torch.full((1 << 22,), 1e-40)
    truth.ready()
    while True:
        torch.relu(small) if what == "relu" else torch.mul(small, 0.5)


truth.thread("main", waits=None)
globals()[sys.argv[1]](*sys.argv[2:])
