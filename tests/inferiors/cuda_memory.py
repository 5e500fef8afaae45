"""cuda-memory: what CUDA's caching allocator counts after tensors came and went, and what torch says of it.

For a wheel for CUDA; with the stand-in for a device (native/one_cuda_device.cpp) preloaded, no device is needed.
"""

import sys

import torch
import truth

kept = [torch.empty(size, device="cuda") for size in (10, 1000, 300_000, 5_000_000, 30_000_000)]
del kept[1], kept[2]
torch.cuda.manual_seed(77)
generator = torch.cuda.default_generators[0]
generator.set_offset(16)
said = {
    "statistics": dict(torch.cuda.memory_stats()),
    "generator": {"device": "cuda:0", "seed": torch.cuda.initial_seed(), "offset": generator.get_offset()},
}
truth.main_ready(verdict="idle", cuda=said)
sys.stdin.read()
