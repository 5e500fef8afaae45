"""The main thread has ended, and another thread keeps the process alive.

``ended_main.py HOW WORK``. HOW: ``native``: the main thread called pthread_exit; ``python``: Python's main thread waits
at shutdown for a non-daemon thread. WORK of that thread: ``waits`` for an event, or ``polls``.
"""

import ctypes
import sys
import threading
import time

import truth

HOW, WORK = sys.argv[1:3]


def waits():
    threading.Event().wait()


def polls():
    while True:
        time.sleep(30)


def keep_alive():
    truth.thread("keeper", "futex" if WORK == "waits" else "sleep")
    {"waits": waits, "polls": polls}[WORK]()


def announce(tid):
    def is_over():
        with open(f"/proc/self/task/{tid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"

    if HOW == "native":
        truth.until(is_over)
    truth.ready()


truth.thread("main", "futex" if HOW == "python" else None)
truth.note(line={"waits": waits, "polls": polls}[WORK].__code__.co_firstlineno + (1 if WORK == "waits" else 2))
threading.Thread(target=keep_alive, name="keeper").start()
truth.until(lambda: "keeper" in truth._facts["threads"])
truth.start(announce, args=(threading.get_native_id(),))
if HOW == "native":
    ctypes.CDLL(None).pthread_exit(None)
