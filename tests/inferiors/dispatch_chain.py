"""dispatch-chain: calls operators whose last kernel is ours, notes the keyset that reaches it, and waits.

The kernel stands at CPU and raises once it has noted its keyset, so nothing is computed. A thread for each mode.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings

import torch
import torch_truth
import truth

warnings.simplefilter("ignore")
library = torch.library.Library("aten", "IMPL")
never = threading.Event()
reached = {}
"""Operator to the keyset that reached its kernel, for the call that is being made."""


class Arrived(Exception):
    """Thrown by our kernels: the call got there."""


def watch(name, key="CPU"):
    def kernel(keyset, *args, **kwargs):
        reached[name] = truth.hexadecimal(keyset.raw_repr())
        raise Arrived(name)

    library.impl(name, kernel, key, with_keyset=True, allow_override=True)


OPERATORS = {
    "sin": lambda a: torch.sin(a),
    "cos": lambda a: torch.cos(a),
    "exp": lambda a: torch.exp(a),
    "mm": lambda a: torch.mm(a, a),
    "bmm": lambda a: torch.bmm(a[None].detach(), a[None].detach()),
    "add.Tensor": lambda a: a + a,
    "mul.Tensor": lambda a: a * a,
    "sum.dim_IntList": lambda a: a.sum(1),
    "add_.Tensor": lambda a: a.detach().add_(a.detach()),
    "as_strided": lambda a: a.as_strided((2, 2), (1, 1)),
    "_softmax": lambda a: torch._softmax(a, 1, False),
    "tanh": lambda a: torch.tanh(a),
    "relu": lambda a: torch.relu(a),
}


def arguments(name, tensor):
    """The tensors that the call itself gets: those of ``OPERATORS``."""
    if name in ("bmm", "add_.Tensor"):
        return [tensor.detach()]
    return [tensor]


def record(tensors):
    calls = []
    for label, tensor in tensors.items():
        for name, call in OPERATORS.items():
            reached.clear()
            with contextlib.suppress(Arrived, RuntimeError, NotImplementedError):
                call(tensor)
            if name in reached:
                keysets = [torch_truth.tensor_keyset(one) for one in arguments(name, tensor)]
                calls.append({"op": f"aten::{name}", "tensor": label, "arguments": keysets, "kernel": reached[name]})
    return calls


def tensors():
    return {
        "plain": torch.rand(2, 2),
        "grad": torch.rand(2, 2, requires_grad=True),
        "conjugate": torch.rand(2, 2, dtype=torch.complex64).conj(),
        "conjugate-grad": torch.rand(2, 2, dtype=torch.complex64, requires_grad=True).conj(),
        "negative": torch._neg_view(torch.rand(2, 2)),
    }


def stay(role, make):
    def run():
        with make():
            done[role] = record(prepared)
            truth.thread(role)
            order.pop()
            never.wait()

    return run


MODES = {
    "plain": contextlib.nullcontext,
    "no-grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "below-autograd": torch._C._AutoDispatchBelowAutograd,
}
prepared = tensors()
for operator in OPERATORS:
    watch(operator)
done = {}
for role, make in MODES.items():
    order = [role]
    threading.Thread(target=stay(role, make), daemon=True).start()
    deadline = time.monotonic() + 30
    while order and time.monotonic() < deadline:
        time.sleep(0.01)
truth.note(calls=done)
truth.thread("main")
truth.ready()
never.wait()
