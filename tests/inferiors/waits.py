"""Threads that wait in every way there is, one each; no torch. Its truth names kind, resource and owner of each."""

import ctypes
import os
import queue
import select
import socket
import subprocess
import threading
import time

import native_library
import truth

locks = native_library.load("locks")
locks.wait_condvar_timed.argtypes = [ctypes.c_long]
for_ever = threading.Event()


def address(name):
    return native_library.address(locks, name)


def facts(kind, name=None, owner=None):
    """What a report must say of the wait: kind, the resource's address, the role of its owner."""
    found = {"kind": kind}
    if name:
        found["address"] = address(name)
    if owner:
        found["owner"] = owner
    return found


python_lock, python_rlock = threading.Lock(), threading.RLock()
python_condition = threading.Condition()
empty_queue = queue.Queue()
pipe_end = os.pipe()[0]
ours, theirs = socket.socketpair()


def self_lock():
    """A plain mutex blocks its own owner; error checking and recursive ones would not."""
    locks.lock(locks.third_mutex)
    locks.lock(locks.third_mutex)


def wait_condition():
    with python_condition:
        python_condition.wait()


def wait_child():
    child = subprocess.Popen(["sleep", str(truth.FOREVER)])
    children.append(child.pid)
    child.wait()


children = []

JOBS = {
    "mutex": ("futex", facts("mutex", "first_mutex", owner="main"), lambda: locks.lock(locks.first_mutex)),
    "recursive": ("futex", facts("mutex", "recursive_mutex", owner="main"), lambda: locks.lock(locks.recursive_mutex)),
    "self": ("futex", facts("mutex", "third_mutex", owner="self"), self_lock),
    "reader": ("futex", facts("rwlock", "rwlock", owner="main"), locks.read_lock),
    "writer": ("futex", facts("rwlock", "rwlock", owner="main"), locks.write_lock),
    "condvar": ("futex", facts("condvar", "condvar"), locks.wait_condvar),
    "condvar-cxx": ("futex", facts("condvar", "cxx_condvar"), locks.wait_cxx_condvar),
    "condvar-timed": ("futex", facts("condvar", "condvar"), lambda: locks.wait_condvar_timed(500)),
    "semaphore": ("futex", facts("semaphore", "semaphore"), locks.wait_semaphore),
    "barrier": ("futex", facts("barrier", "barrier"), lambda: locks.wait_barrier(2)),
    "once-owner": ("any", facts("io"), locks.hold_once),
    "once": ("futex", facts("once", "once", owner="once-owner"), locks.wait_once),
    "guard-owner": ("any", facts("io"), locks.hold_static_guard),
    "guard": ("futex", facts("static-init", owner="guard-owner"), locks.wait_static_guard),
    "join": ("futex", facts("join"), locks.wait_join),
    "lock": ("futex", facts("python-lock"), python_lock.acquire),
    "rlock": ("futex", facts("python-lock", owner="main"), python_rlock.acquire),
    "condition": ("futex", facts("python-lock"), wait_condition),
    "event": ("futex", facts("python-lock"), for_ever.wait),
    "queue": ("futex", facts("python-lock"), empty_queue.get),
    "read": ("read", facts("io"), lambda: os.read(pipe_end, 1)),
    "socket": ("any", facts("io"), lambda: ours.recv(1)),
    "poll": ("poll", facts("io"), lambda: select.select([ours], [], [])),
    "sleep": ("sleep", facts("sleep"), lambda: time.sleep(truth.FOREVER)),
    "child": ("wait", facts("child-process"), wait_child),
}
"""Role: (what /proc must show, what a report must say, what the thread does)."""


def begin(role):
    waits, said, job = JOBS[role]

    def work():
        truth.thread(role, waits=waits, **said)
        named.wait()
        job()

    threading.Thread(target=work, name=role, daemon=True).start()


named = threading.Barrier(len(JOBS) + 1)
locks.lock(locks.first_mutex)
locks.lock(locks.recursive_mutex)
locks.write_lock()
python_lock.acquire()
python_rlock.acquire()
truth.thread("main", waits="any", kind="python-lock")
for role in JOBS:
    begin(role)
named.wait()
truth.until(lambda: children)
truth.note(children=children)
truth.ready()
threading.Event().wait()
