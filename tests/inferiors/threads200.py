"""Many threads, each inside of an operator's kernel, every second one in a native one. Arguments: COUNT [FILE].

With FILE another thread notes there for how long the process has stood still (native/own_clock.cpp).
"""

import sys
import threading

import native_library
import torch
import truth

count = int(sys.argv[1])
native_library.load_operators("operators")
x = torch.ones(2)
inside = threading.Barrier(count + 1)
for_ever = threading.Event()
library = torch.library.Library("gdbext_test", "IMPL")
library.impl("gil_mutex", lambda value: for_ever.wait(), "CPU")


def work(number):
    name = "gil_mutex" if number % 2 else "wait_unboxed"
    truth.thread(f"worker-{number}", waits="futex", op=f"gdbext_test::{name}")
    inside.wait()
    getattr(torch.ops.gdbext_test, name)(x, *([] if number % 2 else [False]))


threading.stack_size(1 << 20)
for number in range(count):
    threading.Thread(target=work, args=(number,), name=f"worker-{number}", daemon=True).start()
inside.wait()
if len(sys.argv) > 2:
    native_library.load("own_clock").watch_own_clock(sys.argv[2].encode())
truth.ready()
for_ever.wait()
