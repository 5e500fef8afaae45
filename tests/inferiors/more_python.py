"""Waits of Python programs, hung and healthy. Argument: the kind, one of the functions. No torch."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import truth


def other(job, *, name="other"):
    def work():
        truth.thread("other", waits="any")
        named.set()
        job()

    named = threading.Event()
    threading.Thread(target=work, name=name, daemon=True).start()
    named.wait()


def import_lock():
    """A module joins a thread that imports it: the import lock records its owner."""
    with open("waits_for_itself.py", "w") as file:
        file.write("import __main__\n__main__.joins_an_importer()\n")
    sys.path.insert(0, os.getcwd())
    import waits_for_itself  # noqa: F401


def joins_an_importer():
    def work():
        truth.thread("other", waits="any")
        truth.ready()
        import waits_for_itself  # noqa: F401

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()


def gil_asleep():
    """A C function sleeps for hours with the GIL in hand."""
    other(lambda: [sum(range(100)) for _ in iter(int, 1)])
    truth.ready()
    ctypes.PyDLL(None).sleep(truth.FOREVER)


def queue_forever():
    truth.ready()
    queue.Queue().get()


def full_pool():
    """A worker waits for a job of its own, full pool."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(lambda: pool.submit(int).result())
    truth.ready()
    future.result()


def job_and_lock():
    """The main thread waits with a lock in hand for a job that wants it."""
    lock = threading.Lock()

    def job():
        truth.thread("other", waits="any")
        truth.ready()
        with lock:
            pass

    with ThreadPoolExecutor(2) as pool, lock:
        pool.submit(job).result()


def event():
    """Healthy: the main thread waits until a signal handler tells it to end."""
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    truth.ready()
    done.wait()


def pool_at_rest():
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(int, range(4)))
        truth.ready()
        sys.stdin.readline()


def given_up():
    """``other`` waits for a condition inside of ``with lock``; whoever has the lock, it is not ``other``."""
    lock = threading.Lock()
    condition = threading.Condition(lock)

    def work():
        with lock:
            condition.wait()

    other(work)
    wants_a_lock_that_is_taken(lock)


def released():
    """``other`` has released the lock inside of ``with lock``."""
    lock = threading.Lock()

    def work():
        with lock:
            lock.release()
            time.sleep(truth.FOREVER)

    other(work)
    wants_a_lock_that_is_taken(lock)


def wants_a_lock_that_is_taken(lock):
    while not lock.acquire(timeout=0.01):
        pass
    truth.ready()
    lock.acquire()


def other_process():
    """A semaphore in shared memory: another process may post it."""
    lock = multiprocessing.get_context("fork").Lock()
    lock.acquire()
    truth.ready()
    lock.acquire()


def full_socket():
    """Both ends write more than fits, and nobody reads."""
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    if os.fork() == 0:
        theirs.send_bytes(bytes(1 << 24))
    truth.ready()
    ours.send_bytes(bytes(1 << 24))


def unread_child():
    """The child writes more than fits into the pipe, and its parent waits for its end before it reads."""
    child = subprocess.Popen([sys.executable, "-c", "print('x' * 1000000)"], stdout=subprocess.PIPE)
    wait_until_blocked(child.pid)
    truth.note(child=child.pid)
    truth.ready()
    child.wait()


def wait_until_blocked(pid):
    while not open(f"/proc/{pid}/syscall").read().startswith("1 "):  # write
        time.sleep(0.01)


truth.thread("main", waits="any")
globals()[sys.argv[1].replace("-", "_")]()
