"""known-bug: the programs of known bugs (gdbext/known/bugs) that hang in a moment, on a version that has the bug.

Sources: python/cpython issues 140746, 94777 and 123720.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import struct
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, process

import truth


def until(condition):
    while not condition():
        time.sleep(0.01)


def ready(verdict, waits="any"):
    truth.thread("main", waits=waits)
    truth.note(verdict=verdict)
    truth.ready()


class Dying(threading.Thread):
    def _bootstrap(self):
        raise MemoryError("simulates memory that is short while the thread begins")


def thread_start():
    """cpython#140746: the new thread ends before it says that it runs."""
    ready("idle", "futex")
    Dying().start()


def job(number, _):
    if number == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.4)


def executor_killed():
    """cpython#94777: a worker is killed while a job is sent that is larger than the pipe."""
    large = bytes(1 << 20)
    executor = ProcessPoolExecutor(2)
    futures = [executor.submit(job, number, large) for number in range(10)]
    until(lambda: futures[-1].done() or executor._broken)
    time.sleep(0.2)
    ready("waiting-external")
    executor.shutdown()


async def serve():
    """cpython#123720: a cancelled server waits for a handler that reads from a client which stays."""
    connected = asyncio.Event()

    async def handle(reader, _):
        connected.set()
        await reader.read()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    task = asyncio.ensure_future(server.serve_forever())
    await asyncio.sleep(0)
    streams = await asyncio.open_connection(*server.sockets[0].getsockname())
    await connected.wait()
    task.cancel()
    ready("waiting-external")
    await task
    del streams


def lost_signal():
    """glibc#25847: the condition variable counts one waiter too many, as it does after the bug, and the next signal is
    for that one. The bug itself takes hours to come; what is written here is the word that it leaves wrong."""
    libc, mutex, condvar = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)

    def wait():
        libc.pthread_mutex_lock(mutex)
        libc.pthread_cond_wait(condvar, mutex)
        libc.pthread_mutex_unlock(mutex)

    def waiter():
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        until(lambda: struct.unpack_from("<2I", condvar, 16) != (0, 0))  # __g_refs: it sleeps
        time.sleep(0.1)
        return thread

    for _ in range(2):
        thread = waiter()
        libc.pthread_cond_signal(condvar)
        thread.join()
    first = 1 - (condvar.raw[0] & 1)
    struct.pack_into("<I", condvar, 24 + 4 * first, 1)  # __g_size of G1, which has no waiters
    thread = waiter()
    libc.pthread_cond_signal(condvar)
    time.sleep(0.1)
    assert thread.is_alive()
    truth.note(condvar=truth.hexadecimal(ctypes.addressof(condvar)))
    ready("blocked", "futex")
    thread.join()


KINDS = {
    "lost-signal": lost_signal,
    "thread-start": thread_start,
    "executor-killed": executor_killed,
    "serve": lambda: asyncio.run(serve()),
}

if __name__ == "__main__":
    assert process.EXTRA_QUEUED_CALLS == 1
    KINDS[sys.argv[1]]()
