"""Forty small programs that work, of kinds that a look might take for a hang or for slow. The argument is the name."""

import asyncio
import concurrent.futures
import fcntl
import gc
import hashlib
import logging
import mmap
import multiprocessing
import os
import queue
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zlib

import truth

DATA = bytes(range(256)) * 4096


def for_ever(step, pause=0.0):
    truth.ready()
    while True:
        step()
        if pause:
            time.sleep(pause)


def beside(count, step):
    """So many threads that do the same."""

    def run():
        while True:
            step()

    for _ in range(count):
        threading.Thread(target=run, daemon=True).start()


def python_work():
    return sum(each * each for each in range(20000))


def native_work():
    return hashlib.sha256(DATA).digest()


def between_steps():
    for_ever(python_work, 0.2)


def reads_a_pipe():
    ours, theirs = os.pipe()
    beside(1, lambda: (time.sleep(0.05), os.write(theirs, b"x")))
    for_ever(lambda: os.read(ours, 1))


def computes():
    for_ever(python_work)


def computes_natively():
    for_ever(native_work)


def two_threads():
    beside(1, python_work)
    for_ever(python_work)


def many_python_threads():
    beside(63, python_work)
    for_ever(python_work)


def many_native_threads():
    beside(63, native_work)
    for_ever(native_work)


def thread_pool():
    pool = concurrent.futures.ThreadPoolExecutor(4)
    for_ever(lambda: list(pool.map(zlib.crc32, [DATA] * 8)))


def process_pool():
    pool = concurrent.futures.ProcessPoolExecutor(2)
    for_ever(lambda: list(pool.map(abs, range(20))), 0.01)


def pool_that_starts():
    def step():
        with multiprocessing.Pool(2) as pool:
            pool.map(abs, range(4))

    for_ever(step)


def queues():
    work = queue.Queue(4)
    beside(2, lambda: work.put(python_work()))
    for_ever(work.get)


def event_loop():
    async def main():
        async def tick(pause):
            while True:
                await asyncio.sleep(pause)

        truth.ready()
        await asyncio.gather(*(tick(each / 100) for each in range(1, 9)))

    asyncio.run(main())


def event_loop_lock():
    async def main():
        lock = asyncio.Lock()

        async def use():
            while True:
                async with lock:
                    await asyncio.sleep(0.01)

        truth.ready()
        await asyncio.gather(*(use() for _ in range(4)))

    asyncio.run(main())


def collections():
    kept = [[each] for each in range(100000)]

    def step():
        gc.collect()
        kept.append(python_work())

    for_ever(step, 0.05)


def allocations():
    for_ever(lambda: bytes(bytearray(1 << 24)), 0.01)


def writes_files():
    with tempfile.TemporaryFile() as file:

        def step():
            file.seek(0)
            file.write(DATA)
            file.flush()
            os.fsync(file.fileno())

        for_ever(step)


def maps_files():
    with tempfile.TemporaryFile() as file:
        file.write(DATA)
        file.flush()

        def step():
            with mmap.mmap(file.fileno(), 0) as mapped:
                return mapped[::4096]

        for_ever(step)


def database():
    with tempfile.NamedTemporaryFile() as file:
        ours = sqlite3.connect(file.name)
        ours.execute("create table t (x)")

        def write():
            other = sqlite3.connect(file.name, timeout=60)
            with other:
                other.execute("insert into t values (1)")
            other.close()
            time.sleep(0.01)

        beside(2, write)
        for_ever(lambda: ours.execute("select count(*) from t").fetchall(), 0.01)


def subprocesses():
    for_ever(lambda: subprocess.run([sys.executable, "-S", "-c", "1"], check=True))


def ping_pong():
    ours, theirs = socket.socketpair()
    beside(1, lambda: theirs.send(theirs.recv(9)))
    for_ever(lambda: (ours.send(b"ping"), ours.recv(9)))


def contended_lock():
    lock = threading.Lock()

    def step():
        with lock:
            python_work()

    beside(7, step)
    for_ever(step)


def conditions():
    condition, numbers = threading.Condition(), []

    def make():
        with condition:
            numbers.append(1)
            condition.notify()
        time.sleep(0.005)

    def take():
        with condition:
            condition.wait_for(lambda: numbers)
            numbers.pop()

    beside(1, make)
    for_ever(take)


def timed_events():
    never = threading.Event()
    for_ever(lambda: never.wait(0.05))


def timers():
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    for_ever(python_work, 0.02)


def forks():
    def step():
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)

    for_ever(step, 0.01)


def descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [os.dup(0) for _ in range(40)]
    for_ever(lambda: os.close(os.dup(kept[0])), 0.01)


def file_locks():
    with tempfile.NamedTemporaryFile() as name:

        def step():
            with open(name.name) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                time.sleep(0.01)

        beside(2, step)
        for_ever(step)


def logs():
    logging.basicConfig(stream=open(os.devnull, "w"))
    beside(3, lambda: logging.warning("a line"))
    for_ever(lambda: logging.warning("another"))


def compresses():
    beside(1, lambda: zlib.compress(DATA, 9))
    for_ever(python_work, 0.01)


def semaphores():
    room = threading.BoundedSemaphore(2)

    def step():
        with room:
            time.sleep(0.01)

    beside(6, step)
    for_ever(step)


def barriers():
    barrier = threading.Barrier(4)
    beside(3, barrier.wait)
    for_ever(barrier.wait, 0.01)


def recursions():
    def deep(left):
        return deep(left - 1) if left else 0

    for_ever(lambda: deep(800))


def shared_memory():
    value = multiprocessing.Value("i", 0)

    def child():
        while True:
            with value.get_lock():
                value.value += 1

    multiprocessing.Process(target=child, daemon=True).start()
    for_ever(lambda: value.value + 1, 0.01)


def torch_training():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    inputs = torch.randn(256, 64)

    def step():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    for_ever(step)


def torch_pauses():
    import torch

    inputs = torch.randn(200, 200)
    for_ever(lambda: inputs @ inputs, 0.1)


def torch_many_threads():
    import torch

    torch.set_num_threads(1)
    weights = torch.randn(64, 64, requires_grad=True)
    beside(63, lambda: (weights @ weights).sum().backward())
    for_ever(lambda: (weights @ weights).sum().backward())


def torch_loader():
    import torch

    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    loader = torch.utils.data.DataLoader(data, 8, num_workers=2, persistent_workers=True)
    for_ever(lambda: [each.sum() for (each,) in loader])


def torch_checkpoints():
    import torch

    weights = {"weights": torch.randn(512, 512)}
    with tempfile.NamedTemporaryFile() as file:
        for_ever(lambda: (torch.save(weights, file.name), torch.load(file.name)))


def torch_inference():
    import torch

    model, inputs = torch.nn.Conv2d(3, 8, 3), torch.randn(2, 3, 32, 32)

    def step():
        with torch.inference_mode():
            model(inputs)

    for_ever(step)


def torch_one_rank():
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    one = torch.ones(8)
    for_ever(lambda: distributed.all_reduce(one), 0.01)


PROGRAMS = {
    name: program
    for name, program in list(globals().items())
    if callable(program) and getattr(program, "__module__", "") == __name__ and name not in (
        "for_ever", "beside", "python_work", "native_work",
    )
}

if __name__ == "__main__":
    truth.thread("main", waits=None)
    PROGRAMS[sys.argv[1]]()
