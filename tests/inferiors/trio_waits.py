"""trio-waits: a runner of trio whose tasks wait for one of everything; each is named after what it waits for."""

import sys
import threading

import trio
import trio.testing
import truth

AWAITS = {
    "first": "the lock", "second": "the lock", "event": "the event", "timed": "the event", "condition": "the condition",
    "semaphore": "the semaphore", "limiter": "the limiter", "receive": "the memory channel", "socket": "fd ",
    "sleep": "sleeps", "forever": "being cancelled", "thread": "a function that a thread runs", "group": "the task",
}
"""Name of a task: what a report says that it waits for."""


async def held(lock, other, taken, both):
    async with lock:
        taken.set()
        await both.wait()
        async with other:
            pass


async def timed(event):
    with trio.move_on_after(truth.FOREVER):
        await event.wait()


async def inside(thing, wait):
    async with thing:
        await wait()


named = threading.Event()


def job():
    truth.thread("worker", waits="futex")
    named.set()
    threading.Event().wait()


async def group():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever, name="member")


async def main():
    first, second, barrier = trio.Lock(), trio.Lock(), trio.Event()
    semaphore, limiter, condition = trio.Semaphore(0), trio.CapacityLimiter(1), trio.Condition()
    _, receive = trio.open_memory_channel(0)
    near, _far = trio.socket.socketpair()
    taken = trio.Event(), trio.Event()
    tasks = {
        "first": (held, first, second, taken[0], barrier), "second": (held, second, first, taken[1], barrier),
        "event": (trio.Event().wait,), "timed": (timed, trio.Event()), "condition": (inside, condition, condition.wait),
        "semaphore": (semaphore.acquire,), "receive": (receive.receive,), "socket": (near.recv, 1),
        "sleep": (trio.sleep, truth.FOREVER), "forever": (inside, limiter, trio.sleep_forever),
        "thread": (trio.to_thread.run_sync, job), "group": (group,),
    }
    async with trio.open_nursery() as nursery:
        for name, (function, *arguments) in tasks.items():
            nursery.start_soon(function, *arguments, name=name)
        for event in taken:
            await event.wait()
        while not named.is_set():
            await trio.sleep(0.01)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(limiter.acquire, name="limiter")
        barrier.set()
        versions = {"trio": trio.__version__, "python": sys.version.split()[0]}
        both = ["first", "second"]
        truth.note(verdict="deadlock", names=both, tasks=both, awaits=AWAITS, versions=versions)
        nursery.start_soon(announce, name="announce")


async def announce():
    await trio.testing.wait_all_tasks_blocked()
    truth.ready()


truth.thread("main", waits="poll")
trio.run(main)
