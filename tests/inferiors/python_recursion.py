"""python-recursion: two Python operators that call each other, DEPTH times each; the innermost one waits for ever.

Their kernels are registered by torch.library for the CPU, and autograd stands before each of them: a turn takes two
passes through the dispatcher and four Python frames. The interpreter's limit of 1000 frames is raised for it.
"""

import sys
import threading

import torch
import torch_truth
import truth

DEPTH = 37
for_ever = threading.Event()
left = 2 * DEPTH
library = torch.library.Library("gdbext_test", "DEF")


def next_turn(other, x):
    global left
    left -= 1
    if left > 0:
        return other(x)
    truth.thread("recursive", waits="any")
    truth.ready()
    for_ever.wait()
    return x


def turn(other, x):
    return next_turn(other, x)


def pong_kernel(x):
    return turn(torch.ops.gdbext_test.py_ping, x)


def ping_kernel(x):
    return turn(torch.ops.gdbext_test.py_pong, x)


for name, kernel in (("py_ping", ping_kernel), ("py_pong", pong_kernel)):
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, kernel, "CPU")

truth.note(verdict="runaway-recursion", op="gdbext_test::py_pong", ops=["gdbext_test::py_ping", "gdbext_test::py_pong"],
           keyset=torch_truth.call("gdbext_test::py_ping", torch.ones(2))["bits"], depth=DEPTH)
sys.setrecursionlimit(100_000)
threading.stack_size(512 << 20)
worker = threading.Thread(target=torch.ops.gdbext_test.py_ping, args=(torch.ones(2),), daemon=True)
worker.start()
worker.join()
