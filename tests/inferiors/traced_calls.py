"""Calls operators and exits with status 7: what dispatch-trace is compared on. Argument: which calls.

``linear``: F.linear on CPU and meta tensors, with and without gradients, and an addition in place. ``model``: forward
and backward of a small model, once under the profiler, whose names go to the file in the second argument, and once
between two calls of ``aten::trace``. ``exec``: becomes another program in the middle. ``children``: forks, starts a
program. Whatever it is, ``ordinarily`` behind it: see brisk.leave.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import brisk
import torch
import torch.nn.functional as F


def linear():
    for device in ("cpu", "meta"):
        for grad in (False, True):
            x = torch.ones(2, 4, 16, device=device, requires_grad=grad)
            w = torch.ones(8, 16, device=device, requires_grad=grad)
            out = F.linear(x, w)
            out.detach().add_(out.detach())


def step(model, x):
    loss = model(x).square().mean()
    loss.backward()
    model.zero_grad()


def model():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3)
    )
    x = torch.randn(4, 6)
    step(net, x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step(net, x)
    # The raw events: profiler.events() drops a call of the same name as its caller.
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: (event.start_ns(), -event.end_ns()))
    Path(sys.argv[2]).write_text(json.dumps([event.name() for event in events if event.name().startswith("aten::")]))
    square = torch.ones(2, 2)
    torch.trace(square)
    step(net, x)
    torch.trace(square)


def replaced():
    a = torch.ones(2, 2)
    torch.mm(a, a)
    os.execv("/bin/sh", ["sh", "-c", "exit 7"])


def children():
    a = torch.ones(2, 2)
    torch.mm(a, a)
    child = os.fork()
    if child == 0:
        torch.mm(a, a)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert subprocess.run(["/bin/true"]).returncode == 0
    torch.mm(a, a)


torch.set_num_threads(1)
{"linear": linear, "model": model, "exec": replaced, "children": children}[sys.argv[1]]()
brisk.leave(7)
