"""meta-mm-spin: as meta-mm, but the kernel loops for ever in C, without the GIL."""

from __future__ import annotations

import native_library
import torch
import torch.nn.functional as F
import truth


def meta_mm(keyset, a, b):
    truth.thread("main", waits="running")
    truth.note(kernel_keyset=truth.hexadecimal(keyset.raw_repr()))
    truth.ready()
    locks.spin()


locks = native_library.load("locks")
library = torch.library.Library("aten", "IMPL")
library.impl("mm", meta_mm, "Meta", with_keyset=True)
truth.note(verdict="busy", op="aten::mm", key="Meta", stage="in-kernel", busy=True)
F.linear(
    torch.randn(2, 4, 16, device="meta", requires_grad=True), torch.randn(8, 16, device="meta", requires_grad=True)
)
