"""Programs that the machine around them holds up, and a healthy one. The first argument is the scenario.

``computes``: one thread that works without end, for a quota or a limit to be put around it. ``pinned``: three threads
that work outside of the GIL, on one processor that they share. ``descriptors``: all of them are in use, and the next
one is tried again and again. ``tasks``: the same with child processes, at the limit that the test sets. ``team``: an
OpenMP team of many threads. ``subnormals``: numbers that are too small to be normal. ``database``: SQLite waits for the
lock of a file, the second argument. ``collects``: a full garbage collection after the other. ``inside``: as
``computes``, in a namespace of control groups of its own, as a container is. ``rereads``: once there is FILE.go, the
pages of a FILE, the second argument, are read again and again; and once there is FILE.more, more memory is taken.
"""

import contextlib
import ctypes
import gc
import hashlib
import mmap
import os
import resource
import socket
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


def descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = []
    with contextlib.suppress(OSError):
        while True:
            kept += socket.socketpair()
    with contextlib.suppress(OSError):
        while True:
            kept.append(os.dup(0))
    truth.note(sockets=sum(isinstance(each, socket.socket) for each in kept))
    os.close(kept[-1])
    truth.ready()  # writes a file
    os.dup(0)
    while True:
        try:
            socket.socket()
        except OSError:
            time.sleep(0.2)


def collects():
    kept = [[number] for number in range(300_000)]
    truth.note(objects=len(kept))
    truth.ready()
    while True:
        gc.collect()


def tasks():
    truth.ready()
    while True:
        try:
            subprocess.run(["true"], check=False)
        except OSError:
            time.sleep(0.1)


def rereads(path):
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
    connection = sqlite3.connect(path, timeout=10_000)
    truth.ready()
    with connection:
        connection.execute("insert into t values (1)")
    with connection:
        connection.execute("insert into t values (2)")
        sqlite3.connect(path, timeout=10_000).execute("insert into t values (3)")


scenario = sys.argv[1]
truth.thread("main", waits=None)
if scenario == "descriptors":
    descriptors()
if scenario == "database":
    database(sys.argv[2])
if scenario == "collects":
    collects()
if scenario == "rereads":
    rereads(sys.argv[2])
if scenario == "inside":
    new_cgroup = 0x02000000  # CLONE_NEWCGROUP (linux/sched.h)
    truth.note(inside=ctypes.CDLL(None).unshare(new_cgroup) == 0)
if scenario == "tasks":
    tasks()
if scenario == "pinned":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for _ in range(2):
        threading.Thread(target=computes, daemon=True).start()
if scenario == "team":
    import torch

    torch.set_num_threads(8 * (os.cpu_count() or 1))
    one = torch.ones(1 << 16)
    one.sin()
    truth.ready()
    while True:
        one.sin()
if scenario == "subnormals":
    import torch

    torch.set_num_threads(1)
    small = torch.full((1 << 22,), 1e-40)
    truth.ready()
    while True:
        torch.mul(small, 0.5)
truth.ready()
computes()
