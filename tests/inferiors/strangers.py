"""What programs of others do, small. Argument: the kind, one of the functions. Those that need torch import it.

Some say of themselves what is to be said of them (``says``); of others tests/integration asks more."""

import asyncio
import contextlib
import datetime
import multiprocessing
import os
import selectors
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import truth

SHORT = 0.02
table = threading.Lock()


def other(job, name="other", waits="any"):
    def work():
        truth.thread(name, waits=waits)
        begun.set()
        job()

    begun = threading.Event()
    threading.Thread(target=work, name=name, daemon=True).start()
    begun.wait()


def ready(waits="any", **facts):
    truth.thread("main", waits=waits)
    truth.note(**facts)
    truth.ready()


def says(kinds, *words, never=(), roles=("main",)):
    """What the verdict must be, what its sentence must and must not say, and whose it is (None: not checked)."""
    truth.note(verdict=kinds.split(), says=words, never=never, roles=roles)


def count():
    number = 0
    while True:
        number += 1


def runs_python():
    """The main thread waits for one that runs Python for ever."""
    other(count, "counter", waits=None)
    ready(busy=True, line=count.__code__.co_firstlineno)
    threading.Event().wait()


@contextlib.contextmanager
def session():
    with table:
        yield


def managed_twice():
    """A lock twice by a context manager that is a generator, which keeps it while it is suspended, on a stack."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(session())
        with session():
            pass


class Account:
    def __init__(self):
        self.guard = threading.Lock()

    def twice(self):
        self.guard.acquire()
        ready("futex")
        self.guard.acquire()


def lock_twice():
    other(managed_twice, "managed")
    Account().twice()


def lock_handed():
    """A lock that another thread is to release: nobody holds it up himself."""
    lock = threading.Lock()
    lock.acquire()
    other(lambda: [time.sleep(truth.FOREVER), lock.release()])
    ready("futex")
    lock.acquire()


def lock_shared():
    """A semaphore in shared memory: another process may post it."""
    says("waiting-external")
    lock = multiprocessing.get_context("fork").Lock()
    lock.acquire()
    ready()
    lock.acquire()


def backward_hook():
    """An event that nobody sets, in a hook of a backward pass; another thread sleeps."""
    import torch

    torch.set_num_threads(1)
    other(lambda: time.sleep(truth.FOREVER))
    with torch.autograd.set_detect_anomaly(True):
        loss = (torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)).sum()
        line = f"strangers.py:{sys._getframe().f_lineno - 1} (backward_hook"
        node = loss.grad_fn.next_functions[0][0]
        node.register_prehook(lambda gradients: never.wait() and None)
        never = threading.Event()
        says("blocked", f"in the backward of {node.name()}, made at ", line)
        ready("futex")
        loss.backward()


def stuck_child():
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        truth._die_with_parent()
        lock = threading.Lock()
        lock.acquire()
        os.write(writer, b"x")
        lock.acquire()
    os.read(reader, 1)
    ready("wait", child=child)
    os.waitpid(child, 0)


def crossed_withs():
    """Two threads with two locks; one is inside of a try in its with block when it wants the other lock. A third one
    has a lock by a call, which a fourth one wants."""
    first, second, third, taken = threading.Lock(), threading.Lock(), threading.RLock(), threading.Event()
    both = threading.Barrier(2)

    def one():
        with first:
            both.wait()
            second.acquire()

    def two():
        with second:
            try:
                both.wait()
                first.acquire()
            finally:
                pass

    def three():
        if third.acquire(timeout=SHORT):
            taken.set()
        threading.Event().wait()

    def four():
        taken.wait()
        third.acquire()

    for job in (one, two, three, four):
        other(job, job.__name__, waits="futex")
    first_line, *more = (each.__code__.co_firstlineno + 1 for each in (one, two, three))
    ready("futex", line=first_line, in_try=more[0], called=more[1])
    threading.Event().wait()


def rank_by_itself():
    """A rank that says so in os.environ alone, and waits for the others in the store."""
    import torch.distributed as dist

    os.environ.update(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    ready()
    store.wait(["never"], datetime.timedelta(days=1))


def rpc_idle():
    import torch.distributed.rpc as rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{os.getcwd()}/rendezvous", num_worker_threads=2)
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
    ready("read")
    sys.stdin.read()


def polled_futures():
    """A loop asks futures in a generator whether they are done, whose jobs wait for an event: no hang is proven."""

    def job():
        truth.thread(f"job-{len(begun)}", waits="any")
        begun.append(1)
        never.wait()

    begun, never, pool = [], threading.Event(), ThreadPoolExecutor(2)
    futures = [pool.submit(job) for _ in range(2)]
    truth.until(lambda: len(begun) >= 2)
    says("idle", "looks again and again at futures (future 0x", roles=("main", "job-0"))
    ready(None)
    while not all(future.done() for future in futures):
        time.sleep(SHORT)


def ask(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"x")
        ready()
        connection.recv(1)


def asks_itself():
    async def serve():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        says("self-deadlock", "which this process itself has not accepted yet")
        ask(server.sockets[0].getsockname()[1])

    asyncio.run(serve())


def asks_a_thread():
    """A task of an event loop asks a server of which a thread looks after the connections, and does not answer."""

    def look_after():
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            while True:
                selector.select()
                time.sleep(SHORT)

    async def asks():
        says("waiting-external", never=["itself could"], roles=None)
        ask(server.getsockname()[1])

    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=look_after, daemon=True).start()
    asyncio.run(asks())


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")]()
