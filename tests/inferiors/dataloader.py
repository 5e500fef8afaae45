"""dataloader: the main thread waits for a worker process that is stopped."""

from __future__ import annotations

import os
import signal

import truth
from torch.utils.data import DataLoader, Dataset


class StopsItself(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        with open("worker.tmp", "w") as out:
            out.write(str(os.getpid()))
        os.rename("worker.tmp", "worker")
        os.kill(os.getpid(), signal.SIGSTOP)
        return index


batches = iter(DataLoader(StopsItself(), num_workers=1, multiprocessing_context="fork"))
while not os.path.exists("worker"):
    os.sched_yield()
with open("worker") as text:
    truth.note(child=int(text.read()))
truth.thread("main", waits="poll")
truth.note(verdict="waiting-external")
truth.ready()
next(batches)
