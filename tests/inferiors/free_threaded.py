"""free-threaded: deadlocks that take a Python without the GIL (3.13t, 3.14t). No torch. Argument: the kind.

``pause``: a thread has a native mutex and stops the world; another one waits for that mutex and stays attached.
``section``: a thread is in a critical section of a dict and waits for a native mutex; who has that wants the dict.
"""

import gc
import sys
import threading
import time

import native_library
import truth

kind = sys.argv[1]
ROLES = {"pause": ("stopper", "attached", "sleeper"), "section": ("inside", "outside")}[kind]
LOCKED, WAITING = 1, 2
native = native_library.load("locks")
attached = native_library.load("locks", keep_gil=True)
mutex = native_library.address(native, "first_mutex")
place = int(mutex, 16)
named = threading.Barrier(len(ROLES) + 1)


class Key:
    """All keys collide, so that a look at the dict compares them."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        attached.gil_then_lock(pointer, WAITING, LOCKED)
        return True


def stopper():
    native.lock(pointer)
    native.set_flag(LOCKED)
    native.wait_flag(WAITING)
    gc.collect()


def waits_attached():
    attached.gil_then_lock(pointer, WAITING, LOCKED)


def sleeper():
    while True:
        time.sleep(0.05)


def inside():
    shared.setdefault(Key(), 2)


def outside():
    native.lock(pointer)
    native.set_flag(LOCKED)
    native.wait_flag(WAITING)
    shared["another"] = 1


def work(role):
    wanted, held = RESOURCES[role]
    truth.thread(role, waits="futex", waits_for=wanted, holds=held)
    named.wait()
    {"attached": waits_attached}.get(role, globals().get(role))()


pointer = native_library.ctypes.c_void_p(place)
shared = {Key(): 1}
place_of_shared = truth.hexadecimal(id(shared))
RESOURCES = {
    "stopper": ("stop-the-world", mutex), "attached": (mutex, "stop-the-world"), "sleeper": ("stop-the-world", ""),
    "inside": (mutex, place_of_shared), "outside": (place_of_shared, mutex),
}
"""What each role waits for, and what others want of it."""
truth.note(verdict="deadlock", cycle=["stopper", "attached"] if kind == "pause" else ["inside", "outside"], mutex=mutex,
           shared=place_of_shared)
for role in ROLES:
    threading.Thread(target=work, args=(role,), name=role, daemon=True).start()
truth.until(lambda: len(truth._facts["threads"]) >= len(ROLES))
truth.stage()
named.wait()
threading.Event().wait()
