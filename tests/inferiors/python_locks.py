"""Threads that wait for every kind of Python lock, and one that sleeps without or with the GIL.

usage: python_locks.py TRUTH.json [gil]

Runs on CPython 3.8 to 3.13. Writes idents, native ids and the addresses (id) of what each thread waits for, then
"ready". With "gil", a thread then sleeps in C for ever while it holds the GIL, and another one wants it.
"""

import concurrent.futures
import ctypes
import functools
import json
import os
import queue
import sys
import threading
import time

HOLDER_READY = threading.Event()
TRUTH = {"waits": {}, "objects": {}}
LOCK = threading.Lock()
RLOCK = threading.RLock()
FREE_LOCK = threading.Lock()
FREE_RLOCK = threading.RLock()
CONDITION = threading.Condition()
EVENT = threading.Event()
SEMAPHORE = threading.Semaphore(0)
QUEUE = queue.Queue()
SIMPLE = queue.SimpleQueue()
BARRIER = threading.Barrier(2)
FUTURE = concurrent.futures.Future()
HANDED = threading.Condition()


class Account:
    def __init__(self):
        self.guard = threading.Lock()
        self.guard.acquire()

    def withdraw(self):
        with self.guard:
            pass


ACCOUNT = Account()


def wait_in_with(lock):
    with lock:
        pass


def wait_in_condition(condition):
    with condition:
        condition.wait()


def hold_rlock():
    for _ in range(3):
        RLOCK.acquire()
    HOLDER_READY.set()
    time.sleep(3600)


EXPECTED = {
    "wait_for_lock": ("lock", LOCK, lambda: LOCK.acquire()),
    "wait_for_lock_with_timeout": ("lock", LOCK, lambda: LOCK.acquire(timeout=3600)),
    "wait_in_with": ("lock", LOCK, lambda: wait_in_with(LOCK)),
    "wait_for_attribute": ("lock", ACCOUNT.guard, ACCOUNT.withdraw),
    "wait_for_rlock": ("rlock", RLOCK, lambda: wait_in_with(RLOCK)),
    "wait_for_condition": ("condition", CONDITION, lambda: wait_in_condition(CONDITION)),
    "wait_for_event": ("event", EVENT, lambda: EVENT.wait(3600)),
    "wait_for_semaphore": ("semaphore", SEMAPHORE, SEMAPHORE.acquire),
    "wait_for_queue": ("queue", QUEUE, QUEUE.get),
    "wait_for_simplequeue": ("simplequeue", SIMPLE, lambda: SIMPLE.get()),
    "wait_for_barrier": ("barrier", BARRIER, BARRIER.wait),
    "wait_for_future": ("future", FUTURE, FUTURE.result),
    "wait_to_reacquire": ("condition", HANDED, lambda: wait_in_condition(HANDED)),
}
"""Name: kind and object of the wait, and the call that waits."""


class Plain:
    shared = 0

    def __init__(self, first):
        self.first = first
        self.second = "zwei"

    def method(self):
        return self


class Slotted:
    __slots__ = ("x",)


class Late(Plain):
    def __call__(self):
        return 1


def decorated(function):
    @functools.wraps(function)
    def wrapper():
        return function()

    return wrapper


@decorated
def wrapped():
    return 2


def make_objects():
    late = Late(1)
    for number in range(40):  # too many for inline values: a dict of its own
        setattr(late, "attribute_%d" % number, number)
    read_dict = Plain(7)
    read_dict.__dict__["extra"] = 8
    values = {
        "ascii": "plain", "latin": "Größe", "ucs2": "長い", "ucs4": "a\U0001f600", "empty": "",
        "long": "x" * 300, "bytes": b"\x00ab", "zero": 0, "one": 1, "negative": -(2**70) - 1, "big": 2**90,
        "true": True, "none": None, "float": 2.5, "tuple": (1, "b", None), "single": (1,), "list": [1, 2, 3, 4, 5, 6],
        "dict": {"a": 1, 2: "b"},
        "general": {(1, 2): 3, "k": 4}, "nested": [[[1]]], "class": Plain, "type": int, "ellipsis": ...,
        "plain": Plain(3), "late": late, "read_dict": read_dict, "slotted": Slotted(),
        "function": make_objects, "method": Plain(1).method, "partial": functools.partial(Plain.method, 1),
        "builtin": len, "wrapped": wrapped, "lambda": lambda: 0, "module": os,
    }
    del values["dict"]["a"]
    values["dict"]["c"] = 5
    return values


OBJECTS = make_objects()


SLEEPER = threading.Thread(target=time.sleep, args=(3600,), name="sleeper", daemon=True)


def wants_the_gil():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    while True:
        time.sleep(0.001)


def start(target, name):
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def asleep(thread):
    with open("/proc/self/task/%d/syscall" % thread.native_id) as file:
        return file.read().startswith("202 ")


def main():
    threading.stack_size(1 << 20)  # keeps the cores small
    for lock in (LOCK, HANDED):
        lock.acquire()
    HANDED.release()
    SLEEPER.start()
    holder = start(hold_rlock, "holder")
    HOLDER_READY.wait()
    threads = {name: start(call, name) for name, (_, _, call) in EXPECTED.items()}
    joins = threads["join"] = start(SLEEPER.join, "join")
    while not all(asleep(thread) for thread in threads.values()):
        time.sleep(0.01)
    HANDED.acquire()
    HANDED.notify()  # its waiter wants HANDED's lock back, which we keep
    time.sleep(0.05)
    for name, (kind, thing, _) in EXPECTED.items():
        TRUTH["waits"][name] = {"tid": threads[name].native_id, "kind": kind, "address": id(thing)}
    TRUTH["join"] = {"tid": joins.native_id, "address": id(SLEEPER)}
    TRUTH["sleeper"] = {"tid": SLEEPER.native_id, "ident": SLEEPER.ident}
    TRUTH["holder"] = {"tid": holder.native_id, "ident": holder.ident}
    TRUTH["rlock"], TRUTH["free_rlock"] = id(RLOCK), id(FREE_RLOCK)
    TRUTH["lock"], TRUTH["free_lock"] = id(LOCK), id(FREE_LOCK)
    TRUTH["main"], TRUTH["handed"] = threading.main_thread().ident, id(HANDED._lock)
    for name, value in OBJECTS.items():
        line = getattr(getattr(value, "__code__", None), "co_firstlineno", None)
        TRUTH["objects"][name] = {"address": id(value), "repr": repr(value), "line": line}
    finish()


def finish():
    gil = sys.argv[2:] == ["gil"]
    if gil:
        TRUTH["wants_gil"] = start(wants_the_gil, "waiter").native_id
    with open(sys.argv[1] + ".new", "w", encoding="utf-8") as file:
        json.dump(TRUTH, file)
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    if gil:
        time.sleep(0.05)
        os.write(1, b"ready\n")
        ctypes.PyDLL(None).sleep(3600)
    os.write(1, b"ready\n")
    os.read(0, 1)


main()
