"""asyncio-waits: an event loop whose tasks wait for one of everything; each is named after what it waits for."""

import asyncio
import socket
import sys
import threading

import truth

AWAITS = {
    "lock": "the lock", "semaphore": "the semaphore", "condition": "the condition", "event": "the event",
    "queue": "the queue", "sleep": "sleeps", "generator": "sleeps", "stream": "fd ", "socket": "fd ",
    "process": "waits for process", "job": "which thread {worker} runs", "future": "the future",
    "wait": "the tasks ", "first": "the first of the tasks ", "shield": "the task sleep",
    "group": "the task member", "barrier": "the barrier", "timeout": "the event",
}
"""Name of a task: what a report says that it waits for."""


async def take(lock):
    async with lock:
        pass


async def notified(condition):
    async with condition:
        await condition.wait()


async def generator():
    async def values():
        await asyncio.sleep(truth.FOREVER)
        yield 1

    async for _ in values():
        pass


async def process():
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", f"import time; time.sleep({truth.FOREVER})")
    await child.wait()


def job():
    truth.thread("worker", waits="futex")
    threading.Event().wait()


async def awaiting(future):
    await future


async def shield(task):
    await asyncio.shield(task)


async def group():
    async with asyncio.TaskGroup() as members:
        members.create_task(asyncio.sleep(truth.FOREVER), name="member")


async def timeout(event):
    async with asyncio.timeout(truth.FOREVER):
        await event.wait()


async def main():
    loop = asyncio.get_running_loop()
    lock, semaphore, queue = asyncio.Lock(), asyncio.Semaphore(1), asyncio.Queue(1)
    await lock.acquire()
    await semaphore.acquire()
    queue.put_nowait(1)
    _mine, theirs = socket.socketpair()
    theirs.setblocking(False)
    near, _far = socket.socketpair()
    stream, _ = await asyncio.open_connection(sock=near)
    event = asyncio.Event()
    jobs = {
        "lock": take(lock), "semaphore": take(semaphore), "condition": notified(asyncio.Condition()),
        "event": event.wait(), "queue": queue.put(2), "sleep": asyncio.sleep(truth.FOREVER), "generator": generator(),
        "stream": stream.readline(), "socket": loop.sock_recv(theirs, 1), "process": process(),
        "job": awaiting(loop.run_in_executor(None, job)), "future": awaiting(loop.create_future()),
    }
    tasks = {name: asyncio.ensure_future(each) for name, each in jobs.items()}
    both = [tasks["sleep"], tasks["event"]]
    more = {"wait": asyncio.wait(both), "first": asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)}
    more["shield"] = shield(tasks["sleep"])
    if hasattr(asyncio, "TaskGroup"):
        more.update(group=group(), barrier=asyncio.Barrier(2).wait(), timeout=timeout(event))
    tasks.update((name, asyncio.ensure_future(each)) for name, each in more.items())
    for name, task in tasks.items():
        task.set_name(name)
    await asyncio.sleep(0.5)
    truth.main_ready(None, verdict="waiting-external", awaits={name: AWAITS[name] for name in tasks})
    await asyncio.sleep(truth.FOREVER)


asyncio.run(main())
