"""Healthy processes that wait, contend and hand over all the time. Argument: one of the functions."""

import os
import queue
import subprocess
import sys
import threading

import torch
import truth


def spawn(step, count=3):
    def work():
        while True:
            step()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def gil():
    """Python threads that only compute: one runs, the others want the GIL."""
    return spawn(lambda: sum(range(1000)))


def backward():
    def step():
        leaf = torch.ones(128, requires_grad=True)
        leaf.register_hook(lambda gradient: gradient * 2)
        (leaf * 3).sum().backward()

    return spawn(step)


def openmp():
    x = torch.rand(1 << 20)
    torch.set_num_threads(2)
    return spawn(lambda: torch.exp(x), 1)


def queues():
    """A producer, consumers, locks, conditions and events."""
    jobs, lock, event = queue.Queue(4), threading.Lock(), threading.Event()

    def consume():
        jobs.get()
        with lock:
            event.wait(0.01)
            event.clear()

    return spawn(lambda: (jobs.put(1), event.set()), 1) + spawn(consume, 2)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index))


def dataloader():
    def step():
        for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1):
            torch.mm(batch, batch.t())

    return spawn(step, 1)


def gloo():
    import torch.distributed as dist

    rank = int(os.environ.get("RANK", "0"))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if rank == 0:
        subprocess.Popen([sys.executable, __file__, "gloo"], env={**os.environ, "RANK": "1"})
    dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
    x = torch.ones(1024)
    return spawn(lambda: (dist.all_reduce(x), x.fill_(1)), 1)


if __name__ == "__main__":
    threads = globals()[sys.argv[1]]()
    if os.environ.get("RANK") != "1":
        truth.main_ready(None, verdict="healthy", busy=True)
    for thread in threads:
        thread.join()
