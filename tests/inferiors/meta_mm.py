"""meta-mm: F.linear on meta tensors folds to aten::mm, whose Meta kernel, a Python function, never returns."""

import threading

import torch
import torch.nn.functional as F
import torch_truth
import truth


def meta_mm(keyset, a, b):
    truth.main_ready(kernel_keyset=truth.hexadecimal(keyset.raw_repr()))
    threading.Event().wait()


library = torch.library.Library("aten", "IMPL")
library.impl("mm", meta_mm, "Meta", with_keyset=True)
x = torch.randn(2, 4, 16, device="meta", requires_grad=True)
w = torch.randn(8, 16, device="meta", requires_grad=True)
truth.note(
    verdict="blocked",
    op="aten::mm",
    key="Meta",
    stage="in-kernel",
    kernel_line=meta_mm.__code__.co_firstlineno,
    calls=[  # innermost first; inside, mm's Autograd kernel redispatches with kernel_keyset
        torch_truth.call("aten::mm", x.view(8, 16), w.t()),
        torch_truth.call("aten::matmul", x, w.t()),
        torch_truth.call("aten::linear", x, w),
    ],
    tensor_keysets={"x": torch_truth.tensor_keyset(x), "w": torch_truth.tensor_keyset(w)},
)
F.linear(x, w)
