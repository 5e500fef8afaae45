"""Registers operators and kernels while it runs, calls them, and exits with status 7. Argument: see brisk.leave."""

import brisk
import torch

torch.set_num_threads(1)
a = torch.ones(2, 2)
torch.mm(a, a)
library = torch.library.Library("late", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x + x, "CPU")
torch.ops.late.twice(a)
library.impl("twice", torch.empty_like, "Meta")
torch.ops.late.twice(a.to("meta"))
override = torch.library.Library("aten", "IMPL")
override.impl("mm", lambda x, y: x + y, "CPU")
torch.mm(a, a)
brisk.leave(7)
