"""slow: programs that are slow, or wait for good reasons, and raise no alarm. Argument: a function."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor

import truth


def compute(seconds=0.05):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    return seconds


def starving_loader():
    """A thread reads batches slowly; the main thread consumes them at once."""
    batches = queue.Queue(2)

    def load():
        while True:
            time.sleep(0.3)
            batches.put(1)

    threading.Thread(target=load, name="loader", daemon=True).start()
    truth.ready()
    while True:
        batches.get()


def validation():
    truth.ready()
    while True:
        compute(1)


def slow_pipe():
    """A save into a pipe whose reader takes its time."""
    reader = "import sys, time\nwhile sys.stdin.buffer.read(4096): time.sleep(0.05)"
    child = subprocess.Popen([sys.executable, "-c", reader], stdin=subprocess.PIPE, bufsize=0)
    truth.ready()
    while True:
        child.stdin.write(b"x" * 100_000)


def compiler():
    """One child after the other, each some seconds long."""
    truth.ready()
    while True:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(1); sum(range(10_000_000))"], check=True)


def server():
    """Many tasks that talk to each other through sockets."""

    async def handle(reader, writer):
        while True:
            line = await reader.readline()
            await asyncio.sleep(0.001)
            writer.write(line)

    async def client(port, lock):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            async with lock:
                writer.write(b"hello\n")
                await reader.readline()

    async def main():
        listening = await asyncio.start_server(handle, "127.0.0.1", 0)
        lock = asyncio.Lock()
        port = listening.sockets[0].getsockname()[1]
        tasks = [asyncio.ensure_future(client(port, lock)) for _ in range(8)]
        truth.ready()
        await asyncio.gather(*tasks)

    asyncio.run(main())


def pool():
    with multiprocessing.get_context("fork").Pool(2) as workers:
        truth.ready()
        while True:
            workers.map(compute, [0.1] * 8)


def process_executor():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as workers:
        truth.ready()
        while True:
            list(workers.map(compute, [0.1] * 8))


def thread_executor():
    with ThreadPoolExecutor(3) as workers:
        truth.ready()
        while True:
            list(workers.map(time.sleep, [0.05] * 8))


def batches_of_requests():
    """A pool's only worker waits for futures that are made by hand, and set by a thread outside of the pool."""
    requests = queue.Queue()

    def answer():
        while True:
            future = requests.get()
            time.sleep(0.05)
            future.set_result(1)

    def ask(_):
        future = Future()
        requests.put(future)
        return future.result()

    threading.Thread(target=answer, daemon=True).start()
    truth.note(verdict="idle", names=["still to come from"])
    with ThreadPoolExecutor(1) as workers:
        truth.ready()
        while True:
            list(workers.map(ask, range(8)))


def locks():
    """Threads that take turns with every kind of lock."""
    lock, condition, turns = threading.Lock(), threading.Condition(), threading.Semaphore(1)

    def work():
        while True:
            with lock, turns:
                time.sleep(0.001)
            with condition:
                condition.notify_all()
                condition.wait(0.01)

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    truth.ready()
    while True:
        time.sleep(1)


def forked():
    """A forked child with threads and locks of its own."""
    if os.fork() == 0:
        locks()
    os.wait()


def idle_server():
    """A server without clients."""

    async def main():
        listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        truth.ready()
        await listening.serve_forever()

    asyncio.run(main())


globals()[sys.argv[1]]()
