"""Python that runs, and processes of multiprocessing. Argument: one of the functions."""

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import truth

context = multiprocessing.get_context("fork")


def deep(number):
    return deep(number - 1) if number else sum(range(300))


def spin():
    def work():
        while True:
            deep(15)

    for _ in range(3):
        truth.start(work)
    truth.ready()
    work()


def churn():
    truth.ready()
    while True:
        truth.start(lambda: deep(20)).join()


def objects():
    queue = context.JoinableQueue()
    queue.put(1)
    killed, taken = context.Lock(), context.Lock()
    child = context.Process(target=lambda: killed.acquire())
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
    truth.note(tids={name: truth.start(wait, name).native_id for name, wait in waits.items()})
    time.sleep(0.2)
    truth.ready()
    sys.stdin.read()


def workers():
    """Workers of pools that work in C or not at all."""
    executor, pool, idle = ProcessPoolExecutor(2, mp_context=context), context.Pool(2), context.Pool(3)
    for _ in range(2):
        executor.submit(time.sleep, truth.FOREVER)
        pool.apply_async(time.sleep, (truth.FOREVER,))
    time.sleep(0.7)
    pids = {"executor": executor._processes, "pool": [each.pid for each in pool._pool]}
    pids["idle"] = [each.pid for each in idle._pool]
    truth.note(pids={f"{name} {number}": pid for name, found in pids.items() for number, pid in enumerate(found)})
    truth.ready()
    sys.stdin.read()


truth.thread("main", waits=None)
globals()[sys.argv[1]]()
