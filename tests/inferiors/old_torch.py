"""meta-mm for a torch as old as 1.13: no keyset for the Python kernel, and nothing that a newer torch would tell."""

import threading
import warnings

import torch
import torch.nn.functional as F
import truth

warnings.filterwarnings("ignore")


def meta_mm(a, b):
    truth.thread("main")
    truth.ready()
    threading.Event().wait()


library = torch.library.Library("aten", "IMPL")
library.impl("mm", meta_mm, "Meta")
x = torch.randn(2, 4, 16, device="meta", requires_grad=True)
w = torch.randn(8, 16, device="meta", requires_grad=True)
truth.note(verdict="blocked", op="aten::mm", stage="in-kernel")
F.linear(x, w)
