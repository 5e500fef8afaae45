"""counted-calls: dispatches a known number of operators each time it is told to ("go" on standard input).

Some in the main thread, as many in another one. It notes what each was dispatched with, by PyTorch's own account.
"""

from __future__ import annotations

import sys
import threading

import torch
import truth

CALLS = 2000
torch.set_num_threads(1)
a, b, out = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4), torch.ones(4, 4)
plain = torch.ones(4, 4)


def work():
    """Three operators of different kinds: a new result with autograd, one in place, one into ``out``."""
    for _ in range(CALLS):
        torch.mm(a, b)
        plain.add_(b)
        torch.mul(plain, b, out=out)


def other():
    truth.thread("other", waits="futex")
    while True:
        begin.wait()
        begin.clear()
        work()
        done.set()


begin, done = threading.Event(), threading.Event()
threading.Thread(target=other, daemon=True).start()
work()
truth.thread("main", waits="read")


def computed_keys(operator, *tensors):
    """The keys that a call of the operator is dispatched with, as PyTorch prints them, by its own account."""
    keys = torch._C._dispatch_tls_local_include_set()
    for tensor in tensors:
        keys = keys | torch._C._dispatch_keys(tensor)
    keys = keys - torch._C._dispatch_tls_local_exclude_set()
    table = dict(line.split(": ", 1) for line in torch._C._dispatch_dump_table(operator).splitlines() if ": " in line)
    named = str(keys)[len("DispatchKeySet(") : -1].split(", ")
    return [name for name in named if not table.get(name, "").startswith("fallthrough")]


truth.note(calls=CALLS, mm=computed_keys("aten::mm", a, b))
truth.ready()
for line in sys.stdin:
    begin.set()
    work()
    done.wait()
    done.clear()
    print("done", line.strip(), flush=True)
