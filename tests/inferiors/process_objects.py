"""Waits for objects of multiprocessing, each in a thread of its own, and workers of pools that work in C or not at all.

Argument: "threads" or "workers". Prints what is needed to find them: thread ids by name, or pids by name.
"""

import json
import multiprocessing
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

context = multiprocessing.get_context("fork")


def end_inside(lock):
    lock.acquire()


def threads():
    queue = context.JoinableQueue()
    queue.put(1)
    killed, taken = context.Lock(), context.Lock()
    child = context.Process(target=end_inside, args=(killed,))
    child.start()
    child.join()
    taken.acquire()
    waits = {
        "event": context.Event().wait,
        "semaphore": context.Semaphore(0).acquire,
        "barrier": context.Barrier(2).wait,
        "joinable": queue.join,
        "killed": killed.acquire,
        "killed with": killed.__enter__,
        "taken": taken.acquire,
    }
    started = [threading.Thread(target=wait, name=name, daemon=True) for name, wait in waits.items()]
    for thread in started:
        thread.start()
    return {thread.name: thread.native_id for thread in started}


def workers():
    executor, pool, idle = ProcessPoolExecutor(2, mp_context=context), context.Pool(2), context.Pool(3)
    for _ in range(2):
        executor.submit(time.sleep, 1000)
        pool.apply_async(time.sleep, (1000,))
    time.sleep(0.5)
    keep.extend((executor, pool, idle))
    pids = {"executor": executor._processes, "pool": [each.pid for each in pool._pool]}
    pids["idle"] = [each.pid for each in idle._pool]
    return {f"{name} {number}": pid for name, found in pids.items() for number, pid in enumerate(found)}


keep = []
found = threads() if sys.argv[1] == "threads" else workers()
time.sleep(0.2)
print(json.dumps(found), flush=True)
sys.stdin.read()
