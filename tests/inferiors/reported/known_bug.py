"""known-bug: the programs of known bugs (gdbext/known/bugs) that hang in a moment, on a version that has the bug.

Sources: python/cpython issues 140746, 94777, 123720, 105829, 115634, 119710 and 125451, joblib/threadpoolctl 239,
huggingface/tokenizers 187, tensorflow/tensorboard 6167, wandb/wandb 12079, pytorch/pytorch 182948,
sourceware 25847, KempnerInstitute/KempnerForge 104. What is not in the standard library is imported where it is needed,
in the version that has the bug.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import multiprocessing
import os
import signal
import struct
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, process

import truth


def until(condition):
    while not condition():
        time.sleep(0.01)


def ready(verdict, waits="any"):
    truth.thread("main", waits=waits)
    truth.note(verdict=verdict)
    truth.ready()


class Dying(threading.Thread):
    def _bootstrap(self):
        raise MemoryError("simulates memory that is short while the thread begins")


def thread_start():
    """cpython#140746: the new thread ends before it says that it runs."""
    ready("idle", "futex")
    Dying().start()


def job(number, _):
    if number == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.4)


def executor_killed():
    """cpython#94777: a worker is killed while a job is sent that is larger than the pipe."""
    large = bytes(1 << 20)
    executor = ProcessPoolExecutor(2)
    futures = [executor.submit(job, number, large) for number in range(10)]
    until(lambda: futures[-1].done() or executor._broken)
    time.sleep(0.2)
    ready("waiting-external")
    executor.shutdown()


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


def executor_wakeup():
    """cpython#105829: submit() fills the wake-up pipe while the manager thread is not there yet to empty it."""
    run = process._ExecutorManagerThread.run

    def late(manager):
        submitted = -1
        while submitted < 1000 or submitted != executor._queue_count:
            submitted = executor._queue_count
            time.sleep(0.1)
        run(manager)

    process._ExecutorManagerThread.run = late
    executor = ProcessPoolExecutor(1)
    fcntl.fcntl(executor._executor_manager_thread_wakeup._writer.fileno(), 1031, 4096)  # F_SETPIPE_SZ
    ready("blocked")
    for _ in range(4096):
        executor.submit(int)


class NotPicklable:
    """Ends the pool's workers while it is pickled, and cannot be."""

    def __init__(self, executor):
        self.executor = executor

    def __reduce__(self):
        for pid in list(self.executor._processes):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
        raise ValueError("cannot be pickled")


def executor_pickle():
    """cpython#125451: the pool breaks while a job is pickled, which then fails."""
    executor = ProcessPoolExecutor(1)
    executor.submit(int).result()
    executor.submit(print, NotPicklable(executor))
    ready("deadlock", "futex")
    executor.shutdown()


def executor_tasks():
    """cpython#115634: after its second job the only worker ends, and no other one is started."""
    spawn = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=2)
    futures = [executor.submit(int) for _ in range(4)]
    until(lambda: futures[1].done() and not executor._processes)
    ready("idle", "futex")
    futures[3].result()


async def subprocess_wait():
    """cpython#119710: the process has ended, and its child keeps the pipe."""
    pipe = asyncio.subprocess.PIPE
    shell = "sleep 1000 </dev/null & read line"
    child = await asyncio.create_subprocess_exec("sh", "-c", shell, stdin=pipe, stdout=pipe)
    waiting = asyncio.ensure_future(child.wait())
    await asyncio.sleep(0)
    child.stdin.close()
    while child.returncode is None:
        await asyncio.sleep(0.01)
    ready("waiting-external")
    await waiting


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


def loader_lock():
    """threadpoolctl#239: one thread looks for libraries, another one has the GIL where it does."""
    import threadpoolctl

    libc = ctypes.PyDLL(None)
    anything = ctypes.cast(libc.getpid, ctypes.c_void_p)

    named = threading.Event()

    def scan():
        truth.thread("scan", waits="futex", waits_for="gil", holds="loader-lock")
        named.set()
        while True:
            threadpoolctl.threadpool_info()

    threading.Thread(target=scan, daemon=True).start()
    named.wait()
    truth.thread("main", waits="futex", waits_for="loader-lock", holds="gil")
    truth.note(verdict="deadlock", cycle=["main", "scan"])
    truth.ready()
    while True:
        libc.dl_iterate_phdr(anything, None)


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


class FullDisk:
    def write(self, _):
        raise OSError(28, "No space left on device")


def event_writer():
    """tensorboard#6167: the thread that writes has ended."""
    from tensorboard.summary.writer.event_file_writer import _AsyncWriter

    writer = _AsyncWriter(FullDisk(), max_queue_size=1, flush_secs=1000)
    writer.write(b"event")
    until(lambda: not writer._worker.is_alive())
    ready("blocked", "futex")
    for _ in range(4):
        writer.write(b"event")


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


KINDS = {
    "loader-lock": loader_lock,
    "tokenizer": tokenizer,
    "event-writer": event_writer,
    "finalizer": finalizer,
    "executor-wakeup": executor_wakeup,
    "executor-pickle": executor_pickle,
    "executor-tasks": executor_tasks,
    "subprocess-wait": lambda: asyncio.run(subprocess_wait()),
    "checkpoint": checkpoint,
    "lost-signal": lost_signal,
    "thread-start": thread_start,
    "executor-killed": executor_killed,
    "serve": lambda: asyncio.run(serve()),
}

if __name__ == "__main__":
    assert process.EXTRA_QUEUED_CALLS == 1
    KINDS[sys.argv[1]]()
