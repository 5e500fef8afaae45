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


def idle_workers(pids, works):
    return {f"{works} {number}": pid for number, pid in enumerate(pids)}


def workers():
    executor = ProcessPoolExecutor(2, mp_context=context)
    executor.submit(time.sleep, 1000)
    executor.submit(time.sleep, 1000)
    pool = context.Pool(2)
    pool.apply_async(time.sleep, (1000,))
    pool.apply_async(time.sleep, (1000,))
    idle = context.Pool(3)
    time.sleep(0.5)
    keep.extend((executor, pool, idle))
    found = idle_workers(executor._processes, "executor at work")
    found.update(idle_workers([each.pid for each in pool._pool], "pool at work"))
    found.update(idle_workers([each.pid for each in idle._pool], "idle"))
    return found


keep = []
found = threads() if sys.argv[1] == "threads" else workers()
time.sleep(0.2)
print(json.dumps(found), flush=True)
sys.stdin.read()
