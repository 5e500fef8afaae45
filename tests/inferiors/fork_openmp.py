"""fork-openmp: the parent has used the OpenMP pool; the forked child runs a parallel operator."""

from __future__ import annotations

import os

import torch
import truth

torch.set_num_threads(2)
x = torch.rand(1 << 20)
torch.exp(x)
if os.fork() == 0:
    truth.thread("main", waits="futex", op="aten::exp")
    truth.note(verdict="missing-workers", op="aten::exp", key="CPU")
    truth.ready()
    torch.exp(x)
    os._exit(0)
os.wait()
