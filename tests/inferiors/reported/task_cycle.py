"""task-cycle: two tasks of an event loop take two locks in opposite order; a third waits for a queue.

Source: https://github.com/Joshuaalbert/FairAsyncRLock/issues/14, https://github.com/python/cpython/pull/1031.
"""

from __future__ import annotations

import asyncio

import truth


async def transfer(first, second, ready):
    async with first:
        await asyncio.sleep(0.01)
        ready.set()
        async with second:
            pass


async def main():
    a, b, ready = asyncio.Lock(), asyncio.Lock(), asyncio.Event()
    queue = asyncio.Queue()
    tasks = [
        asyncio.create_task(transfer(a, b, ready)), asyncio.create_task(transfer(b, a, ready)),
        asyncio.create_task(queue.get()),
    ]
    for name, task in zip(("credit", "debit", "reader"), tasks):
        if hasattr(task, "set_name"):
            task.set_name(name)
    await ready.wait()
    await asyncio.sleep(0.05)
    truth.thread("main", waits=None)
    truth.note(verdict="deadlock", names=["credit", "debit"], tasks=["credit", "debit"])
    truth.ready()
    await asyncio.gather(*tasks)


asyncio.run(main())
