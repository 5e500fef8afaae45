"""fake-tensor-call: a custom operator under FakeTensorMode, as make_fx and torch.compile call it; its fake blocks."""

from __future__ import annotations

import threading

import torch
import truth
from torch._subclasses.fake_tensor import FakeTensorMode

library = torch.library.Library("gdbext_fake", "DEF")
library.define("custom(Tensor x) -> Tensor")
library.impl("custom", lambda x: x.clone(), "CPU")


@torch.library.register_fake("gdbext_fake::custom")
def fake(x):
    truth.thread("main", waits="any")
    truth.note(verdict="blocked")
    truth.ready()
    threading.Event().wait()


with FakeTensorMode():
    torch.ops.gdbext_fake.custom(torch.empty(3, requires_grad=True))
