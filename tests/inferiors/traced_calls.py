"""Calls operators and exits with status 7: what dispatch-trace is compared on. Argument: which calls.

``linear``: F.linear on CPU and meta tensors, with and without gradients, and an addition in place; then it makes the
file in the second argument, if any. ``exec``: becomes another program in the middle. ``children``: forks, starts a
program.
"""

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
    for name in sys.argv[2:]:
        Path(name).touch()


def replaced():
    torch.mm(square, square)
    os.execv("/bin/sh", ["sh", "-c", "exit 7"])


def children():
    torch.mm(square, square)
    child = os.fork()
    if child == 0:
        torch.mm(square, square)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert subprocess.run(["/bin/true"]).returncode == 0
    torch.mm(square, square)


square = torch.ones(2, 2)
torch.set_num_threads(1)
{"linear": linear, "exec": replaced, "children": children}[sys.argv[1]]()
brisk.leave(7)
