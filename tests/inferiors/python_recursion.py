"""python-recursion: two Python operators that call each other, DEPTH times each; the innermost one waits for ever.

Their kernels are registered by torch.library for the CPU, and autograd stands before each of them: a turn takes two
passes through the dispatcher and four Python frames. The interpreter's limit of 1000 frames is raised for it.

python-recursion frames=N [LIBRARY]: until there are N Python frames; with LIBRARY (native/matrix/recursions.cpp) one of
the two operators is its "deep::hand_over".
"""

from __future__ import annotations

import sys
import threading

import torch
import torch_truth
import truth

WANTED = sys.argv[1] if len(sys.argv) > 1 else "37"
FRAMES = int(WANTED.partition("=")[2] or 0)
DEPTH = 0 if FRAMES else int(WANTED)
LIBRARY = sys.argv[2] if len(sys.argv) > 2 else ""
for_ever = threading.Event()
left = 2 * DEPTH
library = torch.library.Library("gdbext_test", "DEF")


def is_deep_enough():
    """Whether this turn is the last one; counts it."""
    global left
    left -= 1
    if not FRAMES:
        return left <= 0
    frame, count = sys._getframe(2), 3  # the kernel's, and the two of a wait
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count > FRAMES


def next_turn(other, x):
    """Hands over to the other operator, or waits where it is deep enough."""
    if not is_deep_enough():
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
first = torch.ops.gdbext_test.py_ping
if LIBRARY:
    torch.ops.load_library(LIBRARY)
    deep = torch.library.Library("deep", "IMPL")
    deep.impl("python_turn", lambda x: turn(torch.ops.deep.hand_over, x), "CPU")
    first = torch.ops.deep.hand_over

truth.note(verdict="runaway-recursion", op="gdbext_test::py_pong", ops=["gdbext_test::py_ping", "gdbext_test::py_pong"],
           keyset=torch_truth.call("gdbext_test::py_ping", torch.ones(2))["bits"], depth=DEPTH)
sys.setrecursionlimit(100_000)
threading.stack_size(512 << 20)
worker = threading.Thread(target=first, args=(torch.ones(2),), daemon=True)
worker.start()
worker.join()
