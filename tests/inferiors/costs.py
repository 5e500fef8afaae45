"""Times an operator in a loop and prints the best time of one call in microseconds, and how often the kernel let others
run because the process stopped or waited (a breakpoint does that once). Arguments: OPERATOR CALLS ROUNDS.

``torch.add`` and ``torch.mm`` on 4 × 4 matrices without gradients: one call, one lookup, one kernel.
"""

import resource
import sys
import time

import brisk
import torch

operator, calls, rounds = getattr(torch, sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
a = torch.ones(4, 4)
operator(a, a)
stops, best = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw, float("inf")
for _ in range(rounds):
    begin = time.perf_counter()
    for _ in range(calls):
        operator(a, a)
    best = min(best, (time.perf_counter() - begin) / calls)
stops = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - stops
print(f"best {best * 1e6:.3f}")
print(f"stops {stops}")
brisk.leave()
