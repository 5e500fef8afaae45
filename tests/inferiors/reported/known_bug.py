"""known-bug: the programs of known bugs (gdbext/known/bugs) that hang in a moment, on a version that has the bug.

Sources: python/cpython issues 140746, 94777 and 123720.
"""

from __future__ import annotations

import asyncio
import os
import signal
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


KINDS = {
    "thread-start": thread_start,
    "executor-killed": executor_killed,
    "serve": lambda: asyncio.run(serve()),
}

if __name__ == "__main__":
    assert process.EXTRA_QUEUED_CALLS == 1
    KINDS[sys.argv[1]]()
