"""counted-calls: dispatches a known number of operators each time it is told to ("go" on standard input).

Some in the main thread, as many in another one. It notes what each was dispatched with, by PyTorch's own account. Told
"profile FILE", it takes a step of training and writes down what the profiler saw of it; told "fail", it calls an
operator that raises; told "sleep", it calls ten times one that takes SLEEP seconds; told "load", it loads an extension
in which the dispatcher is inlined; told "late", it calls through that ten times.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
import threading
import time

import brisk  # noqa: F401 - makes importing torch cheaper
import native_library
import torch
import truth

CALLS = 2000
SLEEP = 0.02
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


library = torch.library.Library("gdbext_counted", "DEF")
library.define("twice(Tensor a) -> Tensor")
library.impl("twice", lambda tensor: tensor + tensor, "CPU")
library.define("sleep(Tensor a) -> Tensor")
library.impl("sleep", lambda tensor: time.sleep(SLEEP) or tensor.clone(), "CPU")
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))


def step():
    torch.ops.gdbext_counted.twice(a)
    model(torch.ones(3, 8)).softmax(-1).max().backward()


def profiled(path):
    """What the profiler saw of one step: (operator, operators around it) in order, for each thread."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    threads = {}
    for event in sorted(profile.events(), key=lambda each: each.time_range.start):
        if re.fullmatch(r"\w+::\w+", event.name):
            around, parent = 0, event.cpu_parent
            while parent is not None:
                around += bool(re.fullmatch(r"\w+::\w+", parent.name))
                parent = parent.cpu_parent
            threads.setdefault(event.thread, []).append((event.name, around))
    pathlib.Path(path).write_text(json.dumps(list(threads.values())))


step()
truth.note(calls=CALLS, sleep=SLEEP, mm=computed_keys("aten::mm", a, b))
truth.ready()
for line in sys.stdin:
    if line.startswith("fail"):
        try:
            torch.mm(a, torch.ones(3, 3))
        except RuntimeError:
            print("done fail", flush=True)
        continue
    if line.startswith("sleep"):
        for _ in range(10):
            torch.ops.gdbext_counted.sleep(plain)
        print("done sleep", flush=True)
        continue
    if line.startswith("load"):
        native_library.load_operators("operators")
        mutex = int(native_library.address(native_library.load("operators"), "first_mutex"), 16)
        torch.ops.gdbext_test.lock_then_gil(plain, mutex, 2, 2)  # flag 2 lets "guarded" pass
        print("done load", flush=True)
        continue
    if line.startswith("late"):
        for _ in range(10):
            torch.ops.gdbext_test.guarded(plain)
        print("done late", flush=True)
        continue
    if line.startswith("profile "):
        profiled(line.split()[1])
        print("done", line.strip(), flush=True)
        continue
    begin.set()
    work()
    done.wait()
    done.clear()
    print("done", line.strip(), flush=True)
