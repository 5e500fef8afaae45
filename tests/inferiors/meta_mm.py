"""meta-mm: F.linear on meta tensors folds to aten::mm, whose Meta kernel, a Python function, never returns.

Argument: what the kernel does for ever: ``event`` (default), ``sleep``, ``read``.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import torch
import torch.nn.functional as F
import truth

WAYS = {
    "event": lambda: threading.Event().wait(),
    "sleep": lambda: time.sleep(truth.FOREVER),
    "read": lambda: os.read(os.pipe()[0], 1),
}


def meta_mm(keyset, a, b):
    truth.thread("main", waits="read" if way == "read" else "any", kernel_keyset=truth.hexadecimal(keyset.raw_repr()))
    truth.ready()
    WAYS[way]()


def tensor_keys(tensor):
    return truth.hexadecimal(torch._C._dispatch_keys(tensor).raw_repr())


way = sys.argv[1] if len(sys.argv) > 1 else "event"
library = torch.library.Library("aten", "IMPL")
library.impl("mm", meta_mm, "Meta", with_keyset=True)
x = torch.randn(2, 4, 16, device="meta", requires_grad=True)
w = torch.randn(8, 16, device="meta", requires_grad=True)
truth.note(
    ops=["aten::mm", "aten::matmul", "aten::linear"],
    tensor_keysets={"x": tensor_keys(x), "w": tensor_keys(w)},
    kernel_line=meta_mm.__code__.co_firstlineno,
)
F.linear(x, w)
