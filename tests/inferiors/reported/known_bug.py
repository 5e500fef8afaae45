"""known-bug: the programs of known bugs (gdbext/known/bugs) that hang in a moment, on a version that has the bug.

Sources: python/cpython issues 123720 and 115634, huggingface/tokenizers 187, wandb/wandb 12079,
pytorch/pytorch 182948, sourceware 25847, KempnerInstitute/KempnerForge 104. Argument: one of the functions.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import os
import struct
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import truth


def until(condition):
    while not condition():
        time.sleep(0.01)


def ready(verdict, waits="any"):
    truth.thread("main", waits=waits)
    truth.note(verdict=verdict)
    truth.ready()


async def serve():
    """cpython#123720: a cancelled server waits for a handler that reads from a client which stays."""
    connected = asyncio.Event()

    async def handle(reader, _):
        connected.set()
        await reader.read()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    task = asyncio.ensure_future(server.serve_forever())
    await asyncio.sleep(0)
    streams = await asyncio.open_connection(*server.sockets[0].getsockname())
    await connected.wait()
    task.cancel()
    ready("waiting-external")
    await task
    del streams


def lost_signal():
    """glibc#25847: the condition variable counts one waiter too many, as it does after the bug, and the next signal is
    for that one. The bug itself takes hours to come; what is written here is the word that it leaves wrong."""
    libc, mutex, condvar = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)

    def wait():
        libc.pthread_mutex_lock(mutex)
        libc.pthread_cond_wait(condvar, mutex)
        libc.pthread_mutex_unlock(mutex)

    def waiter():
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        until(lambda: struct.unpack_from("<2I", condvar, 16) != (0, 0))  # __g_refs: it sleeps
        time.sleep(0.1)
        return thread

    for _ in range(2):
        thread = waiter()
        libc.pthread_cond_signal(condvar)
        thread.join()
    first = 1 - (condvar.raw[0] & 1)
    struct.pack_into("<I", condvar, 24 + 4 * first, 1)  # __g_size of G1, which has no waiters
    thread = waiter()
    libc.pthread_cond_signal(condvar)
    time.sleep(0.1)
    assert thread.is_alive()
    truth.note(condvar=truth.hexadecimal(ctypes.addressof(condvar)))
    ready("blocked", "futex")
    thread.join()


def executor_tasks():
    """cpython#115634: after its second job the only worker ends, and no other one is started."""
    spawn = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=2)
    futures = [executor.submit(int) for _ in range(4)]
    until(lambda: futures[1].done() and not executor._processes)
    ready("idle", "futex")
    futures[3].result()


def checkpoint():
    """KempnerForge#104: an asynchronous checkpoint and the main thread use one process group; the other rank is in
    neither collective. And pytorch#182948 in another thread, as in a process with a device."""
    import torch
    import torch.distributed.checkpoint

    other = os.fork() == 0
    torch.distributed.init_process_group("gloo", f"file://{os.getcwd()}/store", rank=int(other), world_size=2)
    if other:
        time.sleep(truth.FOREVER)
    torch.cuda._initialized = True
    lazy = [torch.cuda._lazy_call, lambda: torch.cuda._lazy_call(list)]
    threading.Thread(target=lazy[0], args=lazy[1:], daemon=True).start()
    torch.distributed.checkpoint.async_save({"weight": torch.ones(2)}, checkpoint_id="checkpoint")
    time.sleep(0.5)
    ready("collective", "futex")
    torch.distributed.barrier()


def tokenizer():
    """tokenizers#187: the child uses a tokenizer whose pool the parent has started. Without the variable newer versions
    do without threads after a fork."""
    if os.environ.setdefault("TOKENIZERS_PARALLELISM", "none") == "none":
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    from tokenizers import Tokenizer, models

    texts = ["a"] * 1000
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    words.encode_batch(texts)
    if os.fork() == 0:
        ready("missing-workers", "futex")
        words.encode_batch(texts)
    os.wait()


def finalizer():
    """wandb#12079: the garbage collector of a forked process ends a session of wandb's service."""
    from wandb.apis.public.service_api import ServiceApi
    from wandb.sdk.wandb_settings import Settings

    class Cycle:
        pass

    cycle = Cycle()
    cycle.self, cycle.api = cycle, ServiceApi(Settings(mode="offline"))
    cycle.api._get_api_session()
    if os.fork() == 0:
        ready("blocked", "futex")
        del cycle
        gc.collect()
    os.wait()


if __name__ == "__main__":
    program = globals()[sys.argv[1].replace("-", "_")]
    asyncio.run(program()) if asyncio.iscoroutinefunction(program) else program()
