"""gloo-mismatch: two ranks on the loopback; rank 0 is in all_reduce, rank 1 never enters it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
import truth

rank = int(sys.argv[1]) if len(sys.argv) > 1 else 0
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
peer = subprocess.Popen([sys.executable, __file__, "1"]) if rank == 0 else None
dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
if rank == 1:
    dist.barrier()
    time.sleep(truth.FOREVER)
dist.barrier()
truth.thread("main", waits="any")
truth.note(verdict="waiting-external", wait="collective", peer=peer.pid)


def publish():
    """Once the main thread is inside the collective: its backend threads start with the first one."""
    truth.ready()


threading.Timer(0, publish).start()
dist.all_reduce(torch.ones(4))
