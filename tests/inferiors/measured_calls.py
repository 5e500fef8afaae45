"""measured-calls: works on request, for scripts/measure_probes.py. A line on standard input, an answer in JSON:

``loop OP CALLS ROUNDS``: microseconds of a call of torch.OP on 4 × 4 matrices, of the best round: processor time, and
what the clock says. ``gaps OP SECONDS PAUSE``: calls OP every PAUSE seconds and looks at the clock meanwhile; when it
did not run for more than 0.2 ms: from, to, whether a call was in it. OP "register" gives aten::mm another kernel
instead. ``eight SECONDS RATE``: 8 threads make RATE dispatches a second; for each its own counts, and the calls that
the profiler saw for a while. ``train STEPS``: processor time, and a digest of all parameters. ``busy PAUSE``: from now
on another thread calls torch.mm every PAUSE seconds.
"""

import collections
import contextlib
import hashlib
import json
import random
import sys
import threading
import time

import torch
import truth

torch.set_num_threads(1)
a = torch.ones(4, 4)
THREADS = 8
MANY = 20
"""Calls of aten::neg_ by one of aten::_foreach_neg_, without the GIL, for which eight threads of Python wait."""
DISPATCHES = 11.1
"""Of one call of CALLS, on average: each has a redispatch, and some call others."""
BATCH = 50
CPU = [torch.profiler.ProfilerActivity.CPU]
one_profile = threading.Lock()


def loop(name, calls, rounds):
    operator, calls, used, passed = getattr(torch, name), int(calls), [], []
    for _ in range(int(rounds)):
        began, began_using = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(calls):
            operator(a, a)
        used.append(time.thread_time_ns() - began_using)
        passed.append(time.perf_counter_ns() - began)
    return {"used": min(used) / calls / 1e3, "passed": min(passed) / calls / 1e3}


def register():
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", lambda x, y: x + y, "Meta")
    library._destroy()


def gaps(name, seconds, pause):
    work = register if name == "register" else lambda: getattr(torch, name)(a, a)
    found, last = [], time.monotonic()
    end, following, called = last + float(seconds), last, False
    while last < end:
        now = time.monotonic()
        if now - last > 2e-4:
            found.append((last, now, called))
        called = now >= following
        if called:
            work()
            following = time.monotonic() + float(pause)
        last = now
    return found


# --- eight threads -------------------------------------------------------------------------------

out = [torch.ones(4, 4) for _ in range(THREADS)]
many = [[torch.ones(4, 4) for _ in range(MANY)] for _ in range(THREADS)]
CALLS = {
    "aten::mm": lambda number: torch.mm(out[number], a),
    "aten::add_": lambda number: out[number].add_(a),
    "aten::mul": lambda number: torch.mul(out[number], a, out=out[number]),
    "aten::relu": lambda number: torch.relu(out[number]),
    "aten::_foreach_neg_": lambda number: torch._foreach_neg_(many[number]),
}


def work(number, rate, seconds, tally, seen):
    """Calls in an order of its own, at that many dispatches a second; some of them under the profiler."""
    chosen, names, began, made = random.Random(number), list(CALLS), time.monotonic(), 0
    profiled = began + seconds * (number + 0.5) / THREADS
    with torch.no_grad():
        while time.monotonic() < began + seconds:
            now_profiled = not seen and time.monotonic() > profiled
            calls = chosen.choices(names, k=20 * BATCH if now_profiled else BATCH)
            with watched(seen) if now_profiled else contextlib.nullcontext():
                for name in calls:
                    CALLS[name](number)
            tally.update(calls)
            tally["aten::neg_"] += MANY * calls.count("aten::_foreach_neg_")
            made += len(calls)
            time.sleep(max(0.0, began + made * DISPATCHES / rate - time.monotonic()))


@contextlib.contextmanager
def watched(seen):
    """The operators that the profiler saw this thread call meanwhile, in order."""
    with one_profile, torch.profiler.profile(activities=CPU) as profile:
        yield
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: (event.start_ns(), -event.end_ns()))
    seen += [event.name() for event in events if event.name().startswith("aten::")]


def eight(seconds, rate):
    with torch.profiler.profile(activities=CPU):
        threads, found = [], {}  # the profiler wants to be used by the main thread first

    def one(number):
        found[threading.get_native_id()] = tally, seen = collections.Counter(), []
        work(number, float(rate) / THREADS, float(seconds), tally, seen)

    for number in range(THREADS):
        threads.append(threading.Thread(target=one, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return found


# --- training ------------------------------------------------------------------------------------


def train(steps):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 4)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    data = torch.randn(64, 16)
    began = time.process_time()
    for _ in range(int(steps)):
        optimizer.zero_grad()
        net(data).square().mean().backward()
        optimizer.step()
    seconds = time.process_time() - began
    digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in net.parameters()))
    return {"seconds": seconds, "digest": digest.hexdigest()}


def busy(pause):
    threading.Thread(target=keep_calling, args=(float(pause),), daemon=True).start()
    return {}


def keep_calling(pause):
    while True:
        torch.mm(a, a)
        time.sleep(pause)


torch.mm(a, a)
truth.main_ready("read")
REQUESTS = {"loop": loop, "gaps": gaps, "eight": eight, "train": train, "busy": busy}
for line in sys.stdin:
    words = line.split()
    print(json.dumps(REQUESTS[words[0]](*words[1:])), flush=True)
