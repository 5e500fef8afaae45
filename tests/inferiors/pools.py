"""pools: OpenMP, BLAS, inter-op and reentrant autograd pools that have worked and wait; main waits for input."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import truth


class Reentrant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, depth):
        ctx.depth = depth
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.depth:
            with torch.enable_grad():
                inner = torch.ones(2, requires_grad=True)
                Reentrant.apply(inner, ctx.depth - 1).sum().backward()
        return gradient, None


@torch.jit.script
def forked(value: torch.Tensor) -> torch.Tensor:
    future = torch.jit.fork(torch.neg, value)
    return torch.jit.wait(future)


torch.set_num_threads(2)
torch.exp(torch.rand(1 << 20))
torch.mm(torch.rand(512, 512), torch.rand(512, 512))
Reentrant.apply(torch.ones(2, requires_grad=True), 70).sum().backward()
forked(torch.ones(2))
executor = ThreadPoolExecutor(2)
list(executor.map(torch.sum, [torch.ones(2)] * 8))
truth.thread("main", waits="read")
truth.note(verdict="idle")
truth.ready()
sys.stdin.readline()
