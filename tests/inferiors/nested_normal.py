"""nested-normal: nesting that is as it should be, one kind per thread.

``inplace``: Autograd, ADInplaceOrView, CPU of one operator. ``functorch``: vmap over grad. ``python``: a Python kernel
that calls another operator, whose Python kernel waits.
"""

from __future__ import annotations

import threading
import warnings

import torch
import truth

warnings.simplefilter("ignore")
for_ever = threading.Event()
staged = threading.Barrier(4)


def wait_here(role, op):
    def kernel(keyset, *args):
        truth.thread(role, waits="any", op=op, kernel_keyset=truth.hexadecimal(keyset.raw_repr()))
        staged.wait()
        for_ever.wait()

    return kernel


library = torch.library.Library("aten", "IMPL")
library.impl("mul_.Tensor", wait_here("inplace", "aten::mul_"), "CPU", with_keyset=True)
library.impl("sin", wait_here("functorch", "aten::sin"), "CPU", with_keyset=True)
library.impl("cos", wait_here("python", "aten::cos"), "Meta", with_keyset=True)
library.impl("mm", lambda a, b: torch.cos(a), "Meta")


def inplace():
    a = torch.ones(3, requires_grad=True).clone()
    a.mul_(torch.ones(3, requires_grad=True))


def functorch():
    torch.func.vmap(torch.func.grad(lambda value: torch.sin(value).sum()))(torch.ones(3, 2))


def python():
    torch.mm(torch.ones(2, 2, device="meta", requires_grad=True), torch.ones(2, 2, device="meta"))


truth.note(verdict="blocked")
for target in (inplace, functorch, python):
    threading.Thread(target=target, name=target.__name__, daemon=True).start()
staged.wait()
truth.ready()
for_ever.wait()
