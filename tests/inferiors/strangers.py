"""What programs of others do, small. Argument: the kind, one of the functions. Those that need torch import it."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import threading
import time
import zlib

import truth


def other(job, name="other", waits="any"):
    """A thread that has begun its job when this returns."""

    def work():
        truth.thread(name, waits=waits)
        begun.set()
        job()

    begun = threading.Event()
    threading.Thread(target=work, name=name, daemon=True).start()
    begun.wait()


def count():
    number = 0
    while True:
        number += 1


def line_of(function):
    return function.__code__.co_firstlineno


def runs_python():
    """The main thread waits for one that runs Python for ever."""
    other(count, "counter", waits=None)
    truth.thread("main", waits="any")
    truth.note(busy=True, line=line_of(count))
    truth.ready()
    threading.Event().wait()


def runs_native():
    """The main thread runs native code, without the GIL."""
    data = bytes(1 << 26)
    truth.thread("main", waits=None)
    truth.note(busy=True, line=line_of(runs_native))
    truth.ready()
    while True:
        zlib.crc32(data)


class Account:
    def __init__(self):
        self.guard = threading.Lock()

    def twice(self):
        self.guard.acquire()
        truth.ready()
        self.guard.acquire()


table = threading.Lock()


@contextlib.contextmanager
def session():
    with table:
        yield


def managed_twice():
    """The same by a context manager that is a generator, which keeps the lock while it is suspended, on a stack."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(session())
        with session():
            pass


def lock_twice():
    """A lock that is taken again further in, and a thread that does so with another one."""
    other(managed_twice, "managed")
    truth.thread("main", waits="futex")
    Account().twice()


def lock_handed():
    """A lock that another thread is to release: nobody holds it up himself."""
    lock = threading.Lock()

    def work():
        time.sleep(truth.FOREVER)
        lock.release()

    truth.thread("main", waits="futex")
    lock.acquire()
    other(work)
    truth.ready()
    lock.acquire()


def lock_tried():
    """A lock that is tried first, and taken by a thread that has let go of its name."""
    lock = threading.Lock()
    other(lambda: [lock.acquire(), time.sleep(truth.FOREVER)])
    while not lock.locked():
        time.sleep(0.001)
    truth.thread("main", waits="futex")
    if not lock.acquire(blocking=False):
        truth.ready()
        lock.acquire()


def backward_hook():
    """An event that nobody sets, in a hook of a backward pass; another thread sleeps."""
    import torch

    torch.set_num_threads(1)
    other(lambda: time.sleep(truth.FOREVER))
    with torch.autograd.set_detect_anomaly(True):
        loss = (torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)).sum()
        node = loss.grad_fn.next_functions[0][0]
        node.register_prehook(lambda gradients: never.wait() and None)
        never = threading.Event()
        truth.thread("main", waits="futex")
        truth.note(node=node.name(), line=line_of(backward_hook) + 7)
        truth.ready()
        loss.backward()


def asleep_in_loop():
    """An event loop whose tasks do nothing but sleep."""
    import asyncio

    async def main():
        naps = [asyncio.create_task(asyncio.sleep(truth.FOREVER)) for _ in range(3)]
        asyncio.get_running_loop().call_soon(truth.ready)
        await asyncio.gather(*naps)
        await asyncio.sleep(0)

    truth.thread("main", waits="any")
    asyncio.run(main())


def stuck_child():
    """The parent waits for a child that waits for itself."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        truth._die_with_parent()
        lock = threading.Lock()
        lock.acquire()
        os.write(writer, b"x")
        lock.acquire()
    os.read(reader, 1)
    truth.thread("main", waits="wait")
    truth.note(child=child)
    truth.ready()
    os.waitpid(child, 0)


def timed_orphan():
    """A lock whose owner has ended, waited for with a timeout."""
    lock = threading.RLock()
    owner = threading.Thread(target=lock.acquire)
    owner.start()
    owner.join()
    truth.thread("main", waits="futex")
    truth.ready()
    lock.acquire(timeout=1_000_000)


def one_handler():
    """Many threads that wait in the library's files, and one, the last, in the program's own."""
    import queue

    for number in range(13):
        target = queue.Queue(number).get
        threading.Thread(target=target, name=f"library-{number}", daemon=True).start()
    reader, _ = os.pipe()
    other(lambda: os.read(reader, 1), "handler", waits="read")
    truth.note(line=line_of(one_handler) + 8)
    truth.thread("main", waits="read")
    truth.ready()
    sys.stdin.read()


def crossed_withs():
    """Two threads with two locks; one is inside of a try in its with block when it wants the other lock. A third one
    has a lock by a call, which a fourth one wants."""
    first, second, third, taken = threading.Lock(), threading.Lock(), threading.RLock(), threading.Event()
    both = threading.Barrier(2)

    def one():
        truth.thread("one", waits="futex")
        with first:
            both.wait()
            second.acquire()

    def two():
        truth.thread("two", waits="futex")
        with second:
            try:
                both.wait()
                first.acquire()
            finally:
                pass

    def three():
        truth.thread("three", waits="futex")
        if third.acquire(timeout=SHORT):
            taken.set()
        threading.Event().wait()

    def four():
        truth.thread("four", waits="futex")
        taken.wait()
        third.acquire()

    truth.note(line=line_of(one) + 2, in_try=line_of(two) + 2, called=line_of(three) + 2)
    threads = [threading.Thread(target=each, name=each.__name__) for each in (one, two, three, four)]
    for thread in threads:
        thread.start()
    truth.thread("main", waits="futex")
    truth.ready()
    for thread in threads:
        thread.join()


def exhausted_server():
    """A server whose workers all wait for one lock, whoever has it, while its loop waits for somebody to connect."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    lock = threading.Lock()
    lock.acquire()

    def handle():
        inside.append(1)
        lock.acquire()

    async def serve():
        loop = asyncio.get_running_loop()
        await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        for _ in range(9):
            loop.run_in_executor(pool, handle)
        while len(inside) < 6:
            await asyncio.sleep(0.001)
        loop.call_soon(truth.ready)
        await asyncio.Event().wait()

    inside = []
    pool = ThreadPoolExecutor(6)
    truth.note(line=line_of(exhausted_server) + 10)
    truth.thread("main", waits="any")
    asyncio.run(serve())


def many_sleepers():
    """Threads that sleep at one line, each for another time."""
    for number in range(5):
        threading.Thread(target=time.sleep, args=(truth.FOREVER + number,), daemon=True).start()
    truth.thread("main", waits="read")
    truth.ready()
    sys.stdin.read()


def fork_server():
    """The servers of multiprocessing, which wait for somebody to ask; the forkserver is the process looked at."""
    import multiprocessing
    from multiprocessing import forkserver, resource_tracker

    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    truth.thread("main", waits="read")
    truth.note(server=forkserver._forkserver._forkserver_pid, tracker=resource_tracker._resource_tracker._pid)
    truth.ready()
    sys.stdin.read()


def rank_by_itself():
    """A rank that says so in os.environ alone, and waits for the others in the store."""
    import torch.distributed as dist

    os.environ.update(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    truth.thread("main", waits="any")
    truth.ready()
    store.wait(["never"], datetime.timedelta(days=1))


def rpc_idle():
    """An RPC agent without calls."""
    import torch.distributed.rpc as rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{os.getcwd()}/rendezvous", num_worker_threads=2)
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
    truth.thread("main", waits="read")
    truth.ready()
    sys.stdin.read()


SHORT = 0.02


def polls(looks):
    """Sleep again and again until ``looks`` says that it is over."""
    truth.thread("main", waits=None)
    truth.note(line=line_of(polls) + 6)
    truth.ready()
    while not looks():
        time.sleep(SHORT)


def stuck_jobs():
    """Futures of jobs that wait for an event."""
    from concurrent.futures import ThreadPoolExecutor

    def job():
        truth.thread(f"job-{len(begun)}", waits="any")
        begun.append(1)
        never.wait()

    begun, never, pool = [], threading.Event(), ThreadPoolExecutor(2)
    futures = [pool.submit(job) for _ in range(2)]
    while len(begun) < 2:
        time.sleep(SHORT)
    return futures


def polled_futures():
    """A loop asks futures in a generator whether they are done."""
    futures = stuck_jobs()
    polls(lambda: all(future.done() for future in futures))


class Crew:
    def __init__(self):
        self.states = ["new"] * 3
        self.never = threading.Condition()

    def work(self):
        with self.never:
            self.never.wait()

    def is_done(self):
        return all(state == "done" for state in self.states)


def polled_states():
    """A loop looks at texts that workers should change, which stand at one line."""
    crew = Crew()
    for number in range(3):
        other(crew.work, f"worker-{number}")
    truth.note(job_line=line_of(Crew.work) + 2)
    polls(crew.is_done)


def polled_child():
    """A loop looks at what nobody can know; the process has a child that waits for itself."""
    import subprocess

    code = "import threading; lock = threading.Lock(); lock.acquire(); print(flush=True); lock.acquire()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    truth.note(child=child.pid)
    polls([].__len__)


def joined_again():
    """A thread is joined for a short time, again and again."""
    begun, never = threading.Event(), threading.Event()
    worker = threading.Thread(target=lambda: (truth.thread("worker", waits="any"), begun.set(), never.wait()))
    worker.daemon = True
    worker.start()
    begun.wait()
    truth.thread("main", waits=None)
    truth.note(line=line_of(joined_again) + 11)
    truth.ready()
    while worker.is_alive():
        worker.join(SHORT)


def handed_on():
    """A queue's put() is handed to futures, whose jobs wait for an event."""
    import queue

    results = queue.Queue()
    futures = stuck_jobs()
    for future in futures:
        future.add_done_callback(results.put)
    truth.thread("main", waits="any")
    truth.ready()
    results.get()


def ask(port):
    """A blocking question to a server at that port, after which the program would go on."""
    import socket

    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"x")
        truth.ready()
        connection.recv(1)


def asks_itself():
    """A task of an event loop asks the server of this very loop."""
    import asyncio

    async def serve():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        truth.thread("main", waits="any")
        ask(server.sockets[0].getsockname()[1])

    asyncio.run(serve())


def asks_a_thread():
    """A task of an event loop asks a server of which a thread looks after the connections, and does not answer."""
    import asyncio
    import selectors
    import socket

    def look_after():
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            truth.thread("server", waits=None)
            while True:
                selector.select()
                time.sleep(SHORT)

    async def asks():
        truth.thread("main", waits="any")
        ask(server.getsockname()[1])

    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=look_after, daemon=True).start()
    asyncio.run(asks())


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")]()
