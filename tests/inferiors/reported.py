"""Programs that hang as public bug reports say. Arguments: the program, a function here, and what it takes."""

import asyncio
import fcntl
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures

import truth

fork = multiprocessing.get_context("fork")


def tells(verdict, *names, waits=None, **facts):
    truth.thread("main", waits=waits, **facts)
    truth.note(verdict=verdict, names=names)


def ready(*words, **facts):
    tells(*words, **facts)
    truth.ready()


def soon_ready(*words):
    """Ready when the main thread has come to its wait."""
    tells(*words)
    truth.start(lambda: (time.sleep(1), truth.ready()))


# --- other processes -------------------------------------------------------------------------------


class Agent:
    def __init__(self):
        commands = ("import threading; threading.Event().wait()", "import os; os.kill(os.getpid(), 9)")
        self.processes = {rank: subprocess.Popen([sys.executable, "-c", text]) for rank, text in enumerate(commands)}

    def monitor(self):
        while True:
            time.sleep(0.5)
            if self.processes[0].poll() is not None:
                return


def agent_polls():
    """A launcher sleeps and looks at its workers, as torchrun does; one waits for nothing that comes.
    https://github.com/pytorch/pytorch/pull/185414, https://github.com/pytorch/elastic/issues/134"""
    agent = Agent()
    time.sleep(0.5)
    ready("waiting-external", *(str(process.pid) for process in agent.processes.values()), "SIGKILL")
    agent.monitor()


def compile_worker():
    """The main thread waits for the result of a compilation, in a worker process that does not end.
    https://github.com/pytorch/pytorch/pull/181293 (torch._inductor.async_compile waits without a timeout)"""
    pool = ProcessPoolExecutor(1, mp_context=fork)
    future = pool.submit(time.sleep, truth.FOREVER)
    ready("waiting-external", *map(str, pool._processes), waits="futex")
    del pool
    future.result()


class FileBaton:
    def __init__(self, path):
        self.lock_file_path = path
        self.wait_seconds = 0.1

    def wait(self):
        while os.path.exists(self.lock_file_path):
            time.sleep(self.wait_seconds)


def file_baton():
    """A compilation was killed and left its lock file behind; everybody waits for it to go away.
    https://github.com/pytorch/pytorch/issues/189245 (torch.utils.file_baton.FileBaton.wait sleeps and looks)"""
    path = os.path.join(os.getcwd(), "lock")
    with open(path, "w"):
        pass
    ready("waiting-external", path)
    FileBaton(path).wait()


def held_by_child(take):
    output, into = os.pipe()
    holder = os.fork()
    if holder == 0:
        taken = take()
        os.write(into, b".")
        time.sleep(truth.FOREVER)
        del taken
    os.read(output, 1)
    return str(holder)


def try_lock(path):
    file = open(path, "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def flock_held():
    """A download waits for the lock of a file that another process has.
    https://github.com/huggingface/huggingface_hub/issues/2543"""
    holder = held_by_child(lambda: try_lock("model.lock"))
    file = open("model.lock", "w")
    ready("waiting-external", holder, "model.lock")
    fcntl.flock(file, fcntl.LOCK_EX)


def acquire(path, poll_interval):
    lock_filename = path
    while True:
        file = try_lock(lock_filename)
        if file is not None:
            return file
        time.sleep(poll_interval)


def lock_polled():
    """A download tries for the lock of a file again and again, as filelock does, while another process has it.
    https://github.com/huggingface/huggingface_hub/issues/2543, https://github.com/huggingface/datasets/issues/3983"""
    place = os.path.join(os.getcwd(), "model.lock")
    ready("waiting-external", held_by_child(lambda: try_lock(place)), "model.lock", "locked by process")
    acquire(place, 0.5)


def lost_job(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def pool_killed():
    """A worker of a multiprocessing.Pool was killed; the pool started another one, but the job is lost.
    https://github.com/python/cpython/issues/96062, https://github.com/mapillary/OpenSfM/issues/190"""
    pool = fork.Pool(2)
    before = {process.pid for process in pool._pool}
    result = pool.map_async(lost_job, range(4), chunksize=1)
    truth.until(lambda: {process.pid for process in pool._pool} != before and len(pool._pool) == 2)
    ready("waiting-external", *(str(process.pid) for process in pool._pool), "lost", waits="futex")
    result.get()


def others_end(kind):
    """Another process, or nobody, is at the other end, and does nothing: "asyncio", "fifo" or "sockets"."""
    {"asyncio": unread_child, "fifo": fifo, "sockets": sockets}[kind]()


def unread_child():
    """Nobody reads what the child writes. https://github.com/bytedance/SandboxFusion/issues/53"""

    async def main():
        words = [sys.executable, "-c", "print('x' * 1_000_000)"]
        child = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        soon_ready("waiting-external", f"waits for process {child.pid}", "blocked writing to")
        await child.wait()

    asyncio.run(main())


def fifo():
    """Nobody opens the other end. https://github.com/mosquito/aiofile/issues/17"""
    os.mkfifo("batches")
    soon_ready("waiting-external", "openat (", "/batches")
    open("batches", "rb")


def sockets():
    """Both ends send, and neither receives. https://github.com/bitcoin/bitcoin/pull/27981"""
    here, there = socket.socketpair()
    child = os.fork()
    (there if child else here).close()
    if child:
        soon_ready("waiting-external", "sendto on", "bytes unread", f"with process {child}")
    (here if child else there).sendall(bytes(10_000_000))


# --- locks and threads -----------------------------------------------------------------------------


class Monitor:
    def __init__(self):
        self._thread_lock = threading.Lock()
        self.taken = threading.Event()

    def keep(self):
        with self._thread_lock:
            self.taken.set()
            time.sleep(truth.FOREVER)

    def ensure_running(self):
        with self._thread_lock:
            pass


def forked_lock():
    """Another thread had a lock when the process forked; in the child nobody can ever release it.
    https://github.com/getsentry/sentry-python/pull/6159, https://github.com/python/cpython/pull/4071"""
    monitor = Monitor()
    truth.start(monitor.keep)
    monitor.taken.wait()
    truth.go_on_in_child()
    truth.note(mutex=truth.hexadecimal(id(monitor._thread_lock)), owner=0)
    ready("orphaned-lock", "when it forked", waits="futex")
    monitor.ensure_running()


class Item:
    def __init__(self, deleted):
        self.deleted = deleted

    def __del__(self):
        self.deleted()


def interrupted_lock(how):
    """What interrupts a thread wants the lock that the interrupted code has: "signal+with" or "del+finally", which says
    what interrupts, and how the lock is taken.
    https://github.com/Delgan/loguru/issues/390, https://github.com/patroni/patroni/pull/3413 (a signal),
    https://github.com/Delgan/loguru/issues/712, https://github.com/getsentry/sentry-python/issues/803 (__del__)"""
    what, _, taken = how.partition("+")
    lock = threading.Lock()

    def emit(*_):
        with lock:
            pass

    def interrupt():
        truth.note(cycle=["main"])
        names = ["interrupted the code that holds it"]
        ready("self-deadlock", *names, waits="futex", waits_for="python-lock", holds="python-lock")
        if what == "signal":
            signal.signal(signal.SIGUSR1, emit)
            signal.raise_signal(signal.SIGUSR1)
        Item(emit)

    if taken == "with":
        with lock:
            interrupt()
    lock.acquire()
    try:
        interrupt()
    finally:
        lock.release()


def nested_pool(workers):
    """Every worker of a thread pool waits for a job that waits for a worker.
    https://github.com/PrefectHQ/prefect/issues/14194"""
    count = int(workers)
    pool, meet = ThreadPoolExecutor(count, thread_name_prefix="flow"), threading.Barrier(count + 1)

    def flow(number):
        truth.thread(f"flow-{number}", waits="futex", waits_for="condvar", holds="condvar")
        meet.wait()
        return pool.submit(int).result()

    futures = [pool.submit(flow, number) for number in range(count)]
    meet.wait()
    truth.note(cycle=[f"flow-{number}" for number in range(count)])
    ready("deadlock" if count > 1 else "self-deadlock", "flow_0", waits="futex")
    [future.result() for future in futures]


def never_done(_futures):
    """concurrent.futures.wait() of two, one of which hangs. https://github.com/python/cpython/issues/92001"""
    pool = ThreadPoolExecutor(2)
    jobs = [pool.submit(int), pool.submit(queue.Queue().get)]
    soon_ready("blocked", "concurrent.futures.Future", "should wake it", "queue")
    wait_for_futures(jobs)


def python_lock_abba(kind="Lock"):
    """Two locks taken in opposite order by ``with``; "rlock": of that kind."""
    make = threading.RLock if kind == "rlock" else threading.Lock
    locks, both, named = [make(), make()], threading.Barrier(2), threading.Barrier(3)

    def work(number):
        truth.thread(f"worker-{number}", waits="futex", waits_for="python-lock", holds="python-lock")
        named.wait()
        with locks[number]:
            both.wait()
            with locks[1 - number]:
                raise AssertionError("this lock must not be had")

    for number in range(2):
        truth.start(lambda number=number: work(number))
    named.wait()
    truth.note(verdict="deadlock", cycle=["worker-0", "worker-1"])
    truth.ready()
    threading.Event().wait()


def shutdown_waits():
    """The program is over, and Python waits for a thread that is no daemon and reads a queue, which nothing fills.
    https://github.com/jaredrhod/backtalk/issues/24"""

    def consume():
        truth.thread("worker", waits="futex")
        queue.Queue().get()

    threading.Thread(target=consume, name="consumer").start()
    ready("blocked", "MainThread", "shutting down", "consumer", "queue", waits="futex")


# --- event loops -----------------------------------------------------------------------------------


async def connect():
    return 1


def loop_result():
    """A coroutine waits, without await, for what only its own event loop could do.
    https://github.com/empicano/aiomqtt/issues/174, https://github.com/python/cpython/issues/121075"""

    async def client():
        future = asyncio.run_coroutine_threadsafe(connect(), asyncio.get_running_loop())
        truth.note(cycle=["main"])
        ready("self-deadlock", "client", waits="futex", waits_for="condvar", holds="condvar")
        return future.result()

    async def main():
        others = [asyncio.create_task(asyncio.sleep(truth.FOREVER), name=f"other-{number}") for number in range(3)]
        await asyncio.gather(asyncio.create_task(client(), name="client"), *others)

    asyncio.run(main())


async def transfer(first, second, taken):
    async with first:
        await asyncio.sleep(0.01)
        taken.set()
        async with second:
            pass


def task_cycle():
    """Two tasks of an event loop take two locks in opposite order; a third waits for a queue.
    https://github.com/Joshuaalbert/FairAsyncRLock/issues/14, https://github.com/python/cpython/pull/1031"""

    async def main():
        a, b, taken = asyncio.Lock(), asyncio.Lock(), asyncio.Event()
        jobs = {"credit": transfer(a, b, taken), "debit": transfer(b, a, taken), "reader": asyncio.Queue().get()}
        tasks = [asyncio.create_task(job, name=name) for name, job in jobs.items()]
        await taken.wait()
        await asyncio.sleep(0.05)
        truth.note(tasks=["credit", "debit"])
        ready("deadlock", "credit", "debit")
        await asyncio.gather(*tasks)

    asyncio.run(main())


# --- known bugs (gdbext/known/bugs), on a version that has the bug --------------------------------------


def executor_tasks():
    """cpython#115634: after its second job the only worker ends, and no other one is started."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=2)
    futures = [pool.submit(int) for _ in range(4)]
    truth.until(lambda: futures[1].done() and not pool._processes)
    ready("idle", waits="futex")
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
    call, again = torch.cuda._lazy_call, lambda: torch.cuda._lazy_call(list)
    threading.Thread(target=call, args=(again,), daemon=True).start()
    torch.distributed.checkpoint.async_save({"weight": torch.ones(2)}, checkpoint_id="checkpoint")
    time.sleep(0.5)
    ready("collective", waits="futex")
    torch.distributed.barrier()


if __name__ == "__main__":
    program, *rest = sys.argv[1:]
    globals()[program.replace("-", "_")](*rest)
