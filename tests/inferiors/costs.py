"""Calls torch.OPERATOR on 4 × 4 matrices, and prints how often the kernel let others run because the process stopped or
waited meanwhile (a breakpoint does that once). Arguments: OPERATOR CALLS."""

import resource
import sys

import brisk
import torch

operator = getattr(torch, sys.argv[1])
a = torch.ones(4, 4)
operator(a, a)
stops = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
for _ in range(int(sys.argv[2])):
    operator(a, a)
print(f"stops {resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - stops}")
brisk.leave()
