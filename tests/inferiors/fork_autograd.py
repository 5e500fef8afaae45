"""fork-autograd: the parent's autograd engine has threads, the forked child runs backward.

PyTorch notices and raises; the truth holds its words, and the child waits, healthy.
"""

from __future__ import annotations

import os
import threading

import torch
import truth


class Reentrant(torch.autograd.Function):
    """Its backward runs another backward; beyond 60 levels the engine starts threads of its own."""

    @staticmethod
    def forward(ctx, value, depth):
        ctx.depth = depth
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.depth:
            with torch.enable_grad():
                Reentrant.apply(torch.ones(2, requires_grad=True), ctx.depth - 1).sum().backward()
        return gradient, None


def backward():
    Reentrant.apply(torch.ones(2, requires_grad=True), 70).sum().backward()


backward()
if os.fork() == 0:
    error = None
    try:
        backward()
    except RuntimeError as raised:
        error = str(raised)
    truth.thread("main", waits="any")
    truth.note(verdict="idle", error=error)
    truth.ready()
    threading.Event().wait()
os.wait()
