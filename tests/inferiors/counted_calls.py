"""counted-calls: dispatches a known number of operators each time it is told to on standard input, by one of REQUESTS.

It notes by PyTorch's own account what aten::mm was dispatched with, and says "done" after each request.
"""

import contextlib
import json
import pathlib
import re
import sys
import threading
import time

import brisk  # noqa: F401 - makes importing torch cheaper
import native_library
import torch
import torch_truth
import truth

CALLS = 2000
SLEEP = 0.02
torch.set_num_threads(1)
a, b, out = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4), torch.ones(4, 4)
plain = torch.ones(4, 4)
wave = torch.linspace(0, 1, 400)


def work():
    """Three operators of different kinds: a new result with autograd, one in place, one into ``out``."""
    for _ in range(CALLS):
        torch.mm(a, b)
        plain.add_(b)
        torch.mul(plain, b, out=out)


def other():
    truth.thread("other", waits="futex")
    while begin.acquire():
        work()
        done.release()


begin, done = threading.Semaphore(0), threading.Semaphore(0)
threading.Thread(target=other, daemon=True).start()
work()
library = torch.library.Library("gdbext_counted", "DEF")
library.define("twice(Tensor a) -> Tensor")
library.impl("twice", lambda tensor: tensor + tensor, "CPU")
library.define("sleep(Tensor a) -> Tensor")
library.impl("sleep", lambda tensor: time.sleep(SLEEP) or tensor.clone(), "CPU")
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))


def go():
    begin.release()
    work()
    done.acquire()


def step():
    torch.ops.gdbext_counted.twice(a)
    model(torch.ones(3, 8)).softmax(-1).max().backward()


def profile(path):
    """Writes what the profiler saw of one step: the operators in order, for each thread."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    threads = {}
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda each: (each.start_ns(), -each.end_ns())):
        if re.fullmatch(r"\w+::\w+", event.name()):
            threads.setdefault(event.start_thread_id(), []).append(event.name())
    pathlib.Path(path).write_text(json.dumps(list(threads.values())))


def spectrum():
    """Its kernels call several operators after aten::empty, whose return addresses are still on the stack."""
    torch.stft(wave, 64, hop_length=16, window=torch.hann_window(64), return_complex=True).abs().sum()


@torch.func.functionalize
def changed(tensor):
    """Each operator goes through functionalizeFallback or its own functionalization, then to the next key."""
    copy = tensor.clone()
    copy.add_(1).view(-1).mul_(2)
    copy[0].zero_()
    return torch.lerp(copy, tensor, 0.5)


def nested(path):
    """Writes for several rounds, from the first one on, what the profiler saw: operators with their levels from 0."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(9):
            spectrum()
            changed(plain)
            model(torch.ones(3, 8)).sum().backward()
    operators = []

    def collect(events, level):
        for event in sorted(events, key=lambda each: each.start_time_ns):
            is_operator = bool(re.fullmatch(r"aten::\w+", event.name))
            if is_operator:
                operators.append((event.name, level))
            collect(event.children, level + is_operator)

    collect(profiler.profiler.kineto_results.experimental_event_tree(), 0)
    pathlib.Path(path).write_text(json.dumps(operators))


def fail():
    with contextlib.suppress(RuntimeError):
        torch.mm(a, torch.ones(3, 3))


def sleep():
    for _ in range(10):
        torch.ops.gdbext_counted.sleep(plain)


def load():
    """An extension in which the dispatcher is inlined."""
    native_library.load_operators("operators")
    mutex = int(native_library.address(native_library.load("operators"), "first_mutex"), 16)
    torch.ops.gdbext_test.lock_then_gil(plain, mutex, 2, 2)  # flag 2 lets "guarded" pass


def late():
    for _ in range(10):
        torch.ops.gdbext_test.guarded(plain)


REQUESTS = {request.__name__: request for request in (go, profile, nested, fail, sleep, load, late)}
step()
truth.main_ready(
    "read", calls=CALLS, sleep=SLEEP, mm=torch_truth.key_names(torch_truth.keyset_at_call("aten::mm", a, b))
)
for line in sys.stdin:
    words = line.split()
    REQUESTS[words[0]](*words[1:])
    print("done", words[0], flush=True)
