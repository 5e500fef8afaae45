"""loop-result: a coroutine waits, without await, for what only its own event loop could do.

Source: https://github.com/empicano/aiomqtt/issues/174, https://github.com/python/cpython/issues/121075.
"""

from __future__ import annotations

import asyncio

import truth


async def register():
    return 1


async def client():
    loop = asyncio.get_running_loop()
    future = asyncio.run_coroutine_threadsafe(register(), loop)
    truth.thread("main", waits="futex", waits_for="condvar", holds="condvar")
    truth.note(verdict="self-deadlock", cycle=["main"], names=["client"])
    truth.ready()
    return future.result()


async def main():
    others = [asyncio.create_task(asyncio.sleep(truth.FOREVER), name=f"other-{number}") for number in range(3)]
    task = asyncio.create_task(client(), name="client")
    await asyncio.gather(task, *others)


asyncio.run(main())
