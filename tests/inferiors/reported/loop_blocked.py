"""loop-blocked: a coroutine waits, without await, for a thread that waits for a coroutine of the same event loop.

Sources: https://github.com/empicano/aiomqtt/issues/174, https://github.com/home-assistant/core/issues/45795.
The loop is uvloop's, which has to be installed.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import truth
import uvloop

submitted = threading.Event()


async def connect():
    return 1


def work(loop):
    future = asyncio.run_coroutine_threadsafe(connect(), loop)
    truth.thread("worker", waits="futex", waits_for="condvar", holds="condvar")
    submitted.set()
    return future.result()


async def main():
    pool = ThreadPoolExecutor(1, thread_name_prefix="client")
    job = pool.submit(work, asyncio.get_running_loop())
    truth.thread("main", waits="futex", waits_for="condvar", holds="condvar")
    truth.note(verdict="deadlock", cycle=["main", "worker"], names=["client_0"])
    submitted.wait()
    truth.ready()
    return job.result()


uvloop.install()
asyncio.run(main())
