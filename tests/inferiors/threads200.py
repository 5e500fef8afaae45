"""threads200: many threads, each inside an operator's kernel.

Arguments: COUNT KIND (``native``, ``python``, ``mixed``) [FILE]. With FILE another thread notes there for how long the
process has stood still (native/own_clock.cpp).
"""

import sys
import threading

import native_library
import torch
import truth

count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
kind = sys.argv[2] if len(sys.argv) > 2 else "mixed"
native_library.load_operators("operators")
x = torch.ones(2)
inside = threading.Barrier(count + 1)
for_ever = threading.Event()


def python_kernel(value):
    for_ever.wait()


library = torch.library.Library("gdbext_test", "IMPL")
library.impl("gil_mutex", python_kernel, "CPU")
OPERATORS = {
    "native": ("gdbext_test::wait_unboxed", lambda: torch.ops.gdbext_test.wait_unboxed(x, False)),
    "python": ("gdbext_test::gil_mutex", lambda: torch.ops.gdbext_test.gil_mutex(x)),
}


def work(number):
    name, call = OPERATORS[kind if kind != "mixed" else ("native", "python")[number % 2]]
    truth.thread(f"worker-{number}", waits="futex", op=name)
    inside.wait()
    call()


threading.stack_size(1 << 20)
for number in range(count):
    threading.Thread(target=work, args=(number,), name=f"worker-{number}", daemon=True).start()
inside.wait()
if len(sys.argv) > 3:
    native_library.load("own_clock").watch_own_clock(sys.argv[3].encode())
truth.note(verdict="blocked")
truth.ready()
for_ever.wait()
