"""Threads that sleep: each in a function of its own, some of them in a loop that looks at something.

Runs on every Python from 3.8 on.
"""

import os
import queue
import subprocess
import sys
import threading
import time

import truth

NEVER = threading.Event()
ALWAYS = 1000.0
jobs = queue.Queue()
stopping = False
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


class Worker:
    def __init__(self):
        self.ready = threading.Event()
        self.results = queue.Queue()

    def attribute(self):
        self.results.put(1)
        while not self.ready.is_set():
            time.sleep(ALWAYS)


def event():
    other = threading.Event()
    other.set()
    while not NEVER.is_set():
        time.sleep(ALWAYS)


def file():
    path = "/tmp/never.done"
    while True:
        if os.path.exists(path):
            break
        time.sleep(ALWAYS)


def written():
    while not os.path.exists("/tmp/never.ready"):
        time.sleep(ALWAYS)
    print("/tmp/never.done")


def process():
    while child.poll() is None:
        time.sleep(ALWAYS)


def flag():
    while not stopping:
        time.sleep(ALWAYS)


def writing():
    place = "/tmp/never.txt"
    while repr("/tmp/never.flag") != place:
        with open("/dev/null", "w") as nothing, open(place, "a+", 1) as log:
            print("/tmp/never.json", file=nothing)
        del log
        time.sleep(ALWAYS)


def reading():
    while True:
        with open("/proc/self/comm") as comm:
            comm.read()
        time.sleep(ALWAYS)


def plain():
    path, seen, done = "/tmp/never.done", threading.Event(), False
    seen.is_set()
    os.path.exists(path)
    time.sleep(ALWAYS)
    return done, child.poll(), jobs.empty()


def before_another_loop():
    time.sleep(ALWAYS)
    while not NEVER.is_set() and not stopping:
        time.sleep(ALWAYS)


def inner_of_two():
    while not NEVER.is_set():
        for _ in range(5):
            time.sleep(ALWAYS)


worker = Worker()
functions = [worker.attribute, event, file, written, writing, reading, process, flag, plain]
functions += [before_another_loop, inner_of_two]
threads = [threading.Thread(target=each, name=each.__name__, daemon=True) for each in functions]
for thread in threads:
    thread.start()
time.sleep(0.2)
truth.note(tids={thread.name: thread.native_id for thread in threads})
truth.ready()
sys.stdin.read()
