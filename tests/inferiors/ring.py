"""ring: a ring buffer of which only tests/example_package knows something. One server is stuck, the other is idle. No
torch."""

import threading
import time

import truth


class Ring:
    def __init__(self, room):
        self.items, self.room, self.changed = [], room, threading.Condition()

    def put(self, item):
        while len(self.items) >= self.room:  # nobody is told: it looks again and again
            time.sleep(0.01)
        self.items.append(item)

    def take(self):
        with self.changed:
            self.changed.wait()


def handle(ring):
    truth.thread("stuck", waits=None)
    stuck.set()
    ring.put("answer")


def serve(ring, item):
    if item is not None:
        handle(ring)
    truth.thread("idle", waits="futex")
    idle.set()
    ring.take()


full = Ring(0)
stuck, idle = threading.Event(), threading.Event()
for item in (None, "question"):
    threading.Thread(target=serve, args=(full, item), daemon=True).start()
stuck.wait()
idle.wait()
truth.thread("asking", waits=None)
truth.ready()
full.put("question")
