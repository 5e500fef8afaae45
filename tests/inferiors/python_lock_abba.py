"""python-lock-abba: two threading.Lock taken in opposite order by ``with``. No torch. Argument: ``rlock``."""

from __future__ import annotations

import sys
import threading

import truth

make = threading.RLock if "rlock" in sys.argv[1:] else threading.Lock
locks = [make(), make()]
both = threading.Barrier(2)


def work(number):
    truth.thread(f"worker-{number}", waits="futex", waits_for="python-lock", holds="python-lock")
    with locks[number]:
        both.wait()
        with locks[1 - number]:
            raise AssertionError("this lock must not be had")


truth.note(verdict="deadlock", cycle=["worker-0", "worker-1"])
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in (0, 1)]
for thread in threads:
    thread.start()
while len(truth._facts["threads"]) < 2:
    both.n_waiting  # noqa: B018 - only looks
truth.ready()
threads[0].join()
