"""Threads that wait for every kind of Python lock, and one that sleeps without or with the GIL.

Runs on CPython 3.8 to 3.13. The truth has idents, native ids and the addresses (id) of what each thread waits for. With
"gil" the main thread then sleeps in C for ever while it holds the GIL, and another one wants it.
"""

import concurrent.futures
import ctypes
import functools
import os
import queue
import sys
import threading
import time

import truth

HOLDER_READY = threading.Event()
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


def wait_in_with():
    with LOCK:
        pass


def wait_for_rlock():
    with RLOCK:
        pass


def wait_for_condition():
    with CONDITION:
        CONDITION.wait()


def wait_to_reacquire():
    with HANDED:
        HANDED.wait()


def hold_rlock():
    for _ in range(3):
        RLOCK.acquire()
    HOLDER_READY.set()
    time.sleep(3600)


SLEEPER = threading.Thread(target=time.sleep, args=(3600,), name="sleeper", daemon=True)
EXPECTED = {
    "wait_for_lock": ("lock", LOCK, lambda: LOCK.acquire()),
    "wait_for_lock_with_timeout": ("lock", LOCK, lambda: LOCK.acquire(timeout=3600)),
    "wait_in_with": ("lock", LOCK, wait_in_with),
    "wait_for_attribute": ("lock", ACCOUNT.guard, ACCOUNT.withdraw),
    "wait_for_rlock": ("rlock", RLOCK, wait_for_rlock),
    "wait_for_condition": ("condition", CONDITION, wait_for_condition),
    "wait_for_event": ("event", EVENT, lambda: EVENT.wait(3600)),
    "wait_for_semaphore": ("semaphore", SEMAPHORE, lambda: SEMAPHORE.acquire()),
    "wait_for_queue": ("queue", QUEUE, lambda: QUEUE.get()),
    "wait_for_simplequeue": ("simplequeue", SIMPLE, lambda: SIMPLE.get()),
    "wait_for_barrier": ("barrier", BARRIER, lambda: BARRIER.wait()),
    "wait_for_future": ("future", FUTURE, lambda: FUTURE.result()),
    "wait_to_reacquire": ("condition", HANDED, wait_to_reacquire),
}


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
    return {
        "list": [1, 2, 3, 4, 5, 6], "long": "x" * 300, "nested": [[[1]]], "class": Plain,
        "plain": Plain(3), "late": late, "read_dict": read_dict, "slotted": Slotted(),
        "function": make_objects, "method": Plain(1).method, "partial": functools.partial(Plain.method, 1),
        "builtin": len, "wrapped": wrapped, "lambda": lambda: 0,
    }


SHOWN = {
    "ascii": "plain", "latin": "Größe", "ucs2": "長い", "ucs4": "a\U0001f600", "empty": "", "bytes": b"\x00ab",
    "zero": 0, "one": 1, "negative": -(2**70) - 1, "big": 2**90, "true": True, "none": None, "float": 2.5,
    "tuple": (1, "b", None), "single": (1,), "dict": {"a": 1, 2: "b"}, "general": {(1, 2): 3, "k": 4}, "ellipsis": ...,
}
"""Objects that are described as the interpreter itself does."""
del SHOWN["dict"]["a"]
SHOWN["dict"]["c"] = 5
OBJECTS = make_objects()


def wants_the_gil():
    truth.until(lambda: os.path.exists(truth.path()))
    while True:
        time.sleep(0.001)


def facts(value, shown=None):
    code = getattr(getattr(value, "__wrapped__", value), "__code__", None)
    return {"address": id(value), "repr": shown, "line": getattr(code, "co_firstlineno", None)}


def main():
    threading.stack_size(1 << 20)  # keeps the cores small
    for lock in (LOCK, HANDED):
        lock.acquire()
    HANDED.release()
    SLEEPER.start()
    holder = truth.start(hold_rlock)
    HOLDER_READY.wait()
    threads = {name: truth.start(target) for name, (_, _, target) in EXPECTED.items()}
    joining = truth.start(lambda: SLEEPER.join())
    truth.until(lambda: all(truth.is_in(202, thread) for thread in [*threads.values(), joining]))
    HANDED.acquire()
    HANDED.notify()  # its waiter wants HANDED's lock back, which we keep
    time.sleep(0.05)
    shown = {name: facts(value, repr(value)) for name, value in SHOWN.items()}
    truth.note(
        waits={
            name: {"tid": threads[name].native_id, "kind": kind, "address": id(thing)}
            for name, (kind, thing, _) in EXPECTED.items()
        },
        join={"tid": joining.native_id, "address": id(SLEEPER)},
        sleeper={"tid": SLEEPER.native_id, "ident": SLEEPER.ident},
        holder={"tid": holder.native_id, "ident": holder.ident},
        lock=id(LOCK), free_lock=id(FREE_LOCK), rlock=id(RLOCK), free_rlock=id(FREE_RLOCK), handed=id(HANDED._lock),
        main=threading.main_thread().ident,
        objects={**{name: facts(value) for name, value in OBJECTS.items()}, **shown},
    )
    finish()


def finish():
    gil = sys.argv[1:] == ["gil"]
    if gil:
        truth.note(wants_gil=truth.start(wants_the_gil).native_id)
    truth.main_ready(None if gil else "read")
    if gil:
        ctypes.PyDLL(None).sleep(truth.FOREVER)
    os.read(0, 1)


main()
