"""python-key: operators that the Python key took, one way per thread, blocking inside.

``subclass``: __torch_dispatch__ of a tensor subclass. ``mode``: a TorchDispatchMode. ``fake``: FakeTensorMode in the
fake kernel of a custom operator.
"""

from __future__ import annotations

import threading

import torch
import torch._dynamo  # here: three threads that import it at once wait for one another's modules
import truth
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

for_ever = threading.Event()
inside = threading.Barrier(4)


def wait_here(role, op):
    truth.thread(role, waits="any", op=op)
    inside.wait()
    for_ever.wait()


class Subclass(torch.Tensor):
    @staticmethod
    def __new__(cls, elem):
        return torch.Tensor._make_wrapper_subclass(cls, elem.shape, dtype=elem.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        wait_here("subclass", "aten::mm")


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        wait_here("mode", "aten::exp")


@torch.library.custom_op("gdbext_python::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@slow.register_fake
def _(x):
    wait_here("fake", "gdbext_python::slow")


def subclass():
    value = Subclass(torch.ones(2, 2))
    torch.mm(value, value)


def mode():
    value = torch.ones(2, 2, requires_grad=True)
    with Mode():
        torch.exp(value)


def fake():
    with FakeTensorMode() as fake_mode:
        slow(fake_mode.from_tensor(torch.ones(2)))


truth.note(verdict="blocked")
for target in (subclass, mode, fake):
    threading.Thread(target=target, name=target.__name__, daemon=True).start()
inside.wait()
truth.ready()
for_ever.wait()
