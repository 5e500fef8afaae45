"""A thread inside a subinterpreter, and a forked child. Runs on CPython 3.8 to 3.13."""

import os
import threading
import time

import truth

try:
    import _interpreters
except ImportError:
    import _xxsubinterpreters as _interpreters

BLOCK_R, BLOCK_W = os.pipe()
SOURCE = """
import os
import threading  # in this interpreter this thread is the "MainThread"
def inside(depth):
    if depth:
        inside(depth - 1)
    else:
        os.write({ready}, inside.__code__.co_filename.encode())
        os.read({block}, 1)
inside(3)
"""


def run_in_interpreter():
    ready_r, ready_w = os.pipe()
    number = _interpreters.create()  # here: up to 3.12 its thread state stays with the thread that creates it
    TRUTH["number"], TRUTH["ready"] = int(number), ready_r
    _interpreters.run_string(number, SOURCE.format(ready=ready_w, block=BLOCK_R))


def fork_here():
    TRUTH["child"] = os.fork()
    if not TRUTH["child"]:
        os.read(BLOCK_R, 1)
        os._exit(0)
    FORKED.set()
    time.sleep(3600)


TRUTH = {"main": threading.get_ident()}
FORKED = threading.Event()


def main():
    threading.stack_size(1 << 20)
    thread = threading.Thread(target=fork_here, name="forker", daemon=True)
    thread.start()
    FORKED.wait()  # a fork with several interpreters kills the child in 3.13.0
    thread = threading.Thread(target=run_in_interpreter, name="guest", daemon=True)
    thread.start()
    truth.until(lambda: "ready" in TRUTH)
    TRUTH["file"] = os.read(TRUTH["ready"], 64).decode()
    TRUTH["tid"] = thread.native_id
    truth.main_ready("read", **TRUTH)
    os.read(0, 1)


main()
