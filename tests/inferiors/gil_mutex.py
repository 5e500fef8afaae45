"""gil-mutex: one thread has a pthread mutex and wants the GIL, the other has the GIL and wants the mutex.

Both are inside an operator's kernel. On /usr/bin/python3 this is gil-no-symbol.
"""

from __future__ import annotations

import ctypes
import threading

import native_library
import torch
import truth

native = native_library.load("operators")
native_library.load_operators("operators")
under_gil = native_library.load("operators", keep_gil=True)
mutex = int(native_library.address(native, "first_mutex"), 16)
library = torch.library.Library("gdbext_test", "IMPL")
library.impl("gil_mutex", lambda x: under_gil.lock_with_gil(ctypes.c_void_p(mutex), 1, 2), "CPU")
lock_then_gil = torch.ops.gdbext_test.lock_then_gil.default
gil_mutex = torch.ops.gdbext_test.gil_mutex.default
x = torch.ones(2)
named = threading.Event()


def lock_first():
    truth.thread("mutex-holder", waits="futex", waits_for="gil", holds="mutex", op="gdbext_test::lock_then_gil")
    named.set()
    lock_then_gil(x, mutex, 2, 1)


threading.Thread(target=lock_first, name="mutex-holder", daemon=True).start()
named.wait()
truth.thread("gil-holder", waits="futex", waits_for="mutex", holds="gil", op="gdbext_test::gil_mutex")
truth.note(verdict="deadlock", cycle=["mutex-holder", "gil-holder"], mutex=truth.hexadecimal(mutex))
truth.stage()
gil_mutex(x)
