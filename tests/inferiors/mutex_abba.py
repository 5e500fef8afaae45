"""mutex-abba: threads that take native mutexes in opposite order, inside kernels. Argument: how many (2 or 3)."""

from __future__ import annotations

import sys
import threading

import native_library
import torch
import truth

count = int(sys.argv[1]) if len(sys.argv) > 1 else 2
native_library.load_operators("operators")
native = native_library.load("operators")
mutexes = [native_library.address(native, f"{name}_mutex") for name in ("first", "second", "third")][:count]
operator = torch.ops.gdbext_test.lock_in_order.default
x = torch.ones(2)
named = threading.Barrier(count + 1)
go = threading.Event()


def work(number):
    mine, wanted = mutexes[number], mutexes[(number + 1) % count]
    truth.thread(f"worker-{number}", waits="futex", holds=mine, waits_for=wanted, op="gdbext_test::lock_in_order")
    named.wait()
    go.wait()
    operator(x, int(mine, 16), int(wanted, 16), count)


for number in range(count):
    threading.Thread(target=work, args=(number,), name=f"worker-{number}", daemon=True).start()
named.wait()
truth.note(verdict="deadlock", cycle=[f"worker-{number}" for number in range(count)], mutexes=mutexes)
truth.stage()
go.set()
threading.Event().wait()
