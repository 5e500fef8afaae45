"""ddp-late: backward of DistributedDataParallel waits for the gradients of a rank that does something else.

Source: https://github.com/pytorch/pytorch/pull/72843, https://github.com/pytorch/pytorch/issues/68297.
"""

from __future__ import annotations

import datetime
import os
import time

import torch
import torch.distributed as dist
import truth

os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
store = os.path.join(os.getcwd(), "store")
rank = 1 if os.fork() == 0 else 0
patience = datetime.timedelta(seconds=100_000)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=patience)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
output = model(torch.ones(1, 4)).sum()
if rank == 1:
    time.sleep(truth.FOREVER)
truth.thread("main", waits="futex")
truth.note(verdict="waiting-external", wait="collective")
truth.ready()
output.backward()
