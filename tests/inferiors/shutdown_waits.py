"""The program is over, and Python waits for a thread that is no daemon and reads a queue, which nothing here fills.

Source: https://github.com/jaredrhod/backtalk/issues/24.
"""

import queue
import threading

import truth


def consume():
    truth.thread("worker", waits="futex")
    queue.Queue().get()


threading.Thread(target=consume, name="consumer").start()
truth.thread("main", waits="futex")
truth.note(verdict="blocked", names=["MainThread", "shutting down", "consumer", "queue"])
truth.ready()
