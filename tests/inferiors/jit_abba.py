"""jit-abba: two threading.Lock taken in opposite order, each the second time by code that CPython's JIT compiled.

No torch. Needs a CPython of 3.14 or later that was built with the JIT, as Debian's are.
"""

import operator
import os
import sys
import threading

if os.environ.get("PYTHON_JIT") != "1":
    os.environ["PYTHON_JIT"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])

import truth

HOT = 20_000
"""Iterations: the JIT compiles a loop after 4,000 (Include/internal/pycore_backoff.h, 3.14)."""
locks = [threading.Lock(), threading.Lock()]
both = threading.Barrier(2)


def take(lock):
    lock.acquire()
    return 1


def spin(wanted):
    taken = 0
    for lock in wanted:
        taken += take(lock)
    return taken


def work(number, wanted):
    truth.thread(f"worker-{number}", waits="futex", waits_for="python-lock", holds="python-lock")
    with locks[number]:
        both.wait()
        spin(wanted)


truth.note(verdict="deadlock", cycle=["worker-0", "worker-1"], jit=sys._jit.is_enabled())
last = [iter([*(threading.Lock() for _ in range(HOT)), locks[1 - number]]) for number in (0, 1)]
threads = [threading.Thread(target=work, args=(number, last[number]), daemon=True) for number in (0, 1)]
for thread in threads:
    thread.start()
truth.until(lambda: not any(map(operator.length_hint, last)))
truth.ready()
threads[0].join()
