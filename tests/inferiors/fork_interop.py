"""fork-interop: the parent has used ATen's inter-op pool; the forked child waits for a future that nobody computes."""

from __future__ import annotations

import os

import torch
import truth


@torch.jit.script
def forked(value: torch.Tensor) -> torch.Tensor:
    future = torch.jit.fork(torch.neg, value)
    return torch.jit.wait(future)


x = torch.ones(2)
for _ in range(3):  # the first calls are optimised away or profiled
    forked(x)
if os.fork() == 0:
    truth.thread("main", waits="futex")
    truth.note(verdict="missing-workers")
    truth.ready()
    forked(x)
    os._exit(0)
os.wait()
