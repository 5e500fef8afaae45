"""fork-mutex: another thread holds a mutex while the process forks; the child's kernel locks it."""

from __future__ import annotations

import os
import threading

import native_library
import torch
import truth

native_library.load_operators("operators")
native = native_library.load("operators")
locks = native_library.load("locks")
mutex = native_library.address(native, "first_mutex")
operator = torch.ops.gdbext_test.lock_one.default
x = torch.ones(2)
held = threading.Event()
owner = []


def hold():
    owner.append(threading.get_native_id())
    locks.lock(native.first_mutex)
    held.set()
    threading.Event().wait()


threading.Thread(target=hold, daemon=True).start()
held.wait()
if os.fork() == 0:
    truth.thread("main", waits="futex", waits_for=mutex, op="gdbext_test::lock_one")
    truth.note(verdict="orphaned-lock", mutex=mutex, owner=owner[0], op="gdbext_test::lock_one")
    truth.stage()
    operator(x, int(mutex, 16), True)
os.wait()
