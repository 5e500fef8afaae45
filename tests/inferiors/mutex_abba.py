"""mutex-abba: two threads that take native mutexes in opposite order, inside kernels."""

from __future__ import annotations

import threading

import native_library
import torch
import truth

native_library.load_operators("operators")
native = native_library.load("operators")
mutexes = [native_library.address(native, f"{name}_mutex") for name in ("first", "second")]
operator = torch.ops.gdbext_test.lock_in_order.default
x = torch.ones(2)
named = threading.Barrier(3)
go = threading.Event()


def work(number):
    mine, wanted = mutexes[number], mutexes[1 - number]
    truth.thread(f"worker-{number}", waits="futex", holds=mine, waits_for=wanted, op="gdbext_test::lock_in_order")
    named.wait()
    go.wait()
    operator(x, int(mine, 16), int(wanted, 16), 2)


for number in range(2):
    threading.Thread(target=work, args=(number,), name=f"worker-{number}", daemon=True).start()
named.wait()
truth.note(verdict="deadlock", cycle=["worker-0", "worker-1"])
truth.stage()
go.set()
threading.Event().wait()
