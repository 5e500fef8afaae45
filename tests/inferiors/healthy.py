"""Healthy processes that wait, contend and hand over all the time. Argument: one of the functions."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time

import native_library
import torch
import truth

WORKERS = 3
DATA = bytes(1 << 20)


def spawn(work, count=WORKERS):
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def gil():
    """Python threads that only compute: one runs, the others want the GIL."""

    def work(_):
        while True:
            sum(range(1000))

    return spawn(work)


def operators():
    """Threads inside small operators, which give up and take the GIL all the time."""

    def work(_):
        x = torch.ones(64, 64)
        while True:
            torch.mm(x, x).add_(1).sum().item()

    return spawn(work)


def backward():
    """Several threads run backward, with Python functions in their graphs."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    def work(_):
        x = torch.ones(128, requires_grad=True)
        while True:
            Twice.apply(x * 3).sum().backward()

    return spawn(work)


def openmp():
    """Parallel regions, one after the other."""

    def work(_):
        x = torch.rand(1 << 20)
        while True:
            torch.exp(x)

    torch.set_num_threads(2)
    return spawn(work, 1)


def mutex():
    """Native threads that hand one mutex on, and others that do so with the GIL around it."""
    locks = native_library.load("locks")

    def work(_):
        while True:
            locks.lock(locks.first_mutex)
            locks.unlock(locks.first_mutex)

    return spawn(work)


def queues():
    """A producer, consumers, locks, conditions and events."""
    jobs, lock, event = queue.Queue(4), threading.Lock(), threading.Event()

    def work(number):
        while True:
            if number == 0:
                jobs.put(1)
                event.set()
            else:
                jobs.get()
                with lock:
                    event.wait(0.01)
                    event.clear()

    return spawn(work)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index))


def dataloader():
    """The main thread reads batches from worker processes."""

    def work(_):
        while True:
            for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1):
                torch.mm(batch, batch.t())

    return spawn(work, 1)


def gloo():
    """Two ranks that reduce all the time."""
    import torch.distributed as dist

    rank = int(os.environ.get("RANK", "0"))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if rank == 0:
        subprocess.Popen([sys.executable, __file__, "gloo"], env={**os.environ, "RANK": "1"})
    dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)

    def work(_):
        x = torch.ones(1024)
        while True:
            dist.all_reduce(x)
            x.fill_(1)

    return spawn(work, 1)


def functorch():
    """vmap over grad, again and again."""

    def work(_):
        x = torch.ones(3, 2)
        while True:
            torch.func.vmap(torch.func.grad(lambda value: torch.sin(value).sum()))(x)

    return spawn(work, 1)


def sleepers():
    """Threads that sleep while they hold a lock that others want for a moment."""
    lock = threading.Lock()

    def work(_):
        while True:
            with lock:
                time.sleep(0.002)

    return spawn(work)


def computes():
    """Many threads in native code that let go of the GIL."""

    def work(_):
        while True:
            hashlib.sha256(DATA).digest()

    return spawn(work, 63)


def pools():
    """One pool of processes after the other."""

    def work(_):
        while True:
            with multiprocessing.get_context("fork").Pool(2) as pool:
                pool.map(abs, range(4))

    return spawn(work, 1)


if __name__ == "__main__":
    threads = globals()[sys.argv[1]]()
    if os.environ.get("RANK") != "1":
        truth.thread("main", waits=None)
        truth.note(verdict="healthy", busy=True)
        truth.ready()
    for thread in threads:
        thread.join()
