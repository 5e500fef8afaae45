"""owed: main threads that wait for somebody who is not there, and healthy ones beside them. Argument: the scenario.

Each notes the kind of its verdict, and words that its sentence must have and must not have.
"""

import asyncio
import concurrent.futures
import contextlib
import datetime
import fcntl
import getpass
import logging.handlers
import multiprocessing
import multiprocessing.pool
import os
import pty
import queue
import resource
import selectors
import signal
import socket
import sys
import threading
import time

import truth

fork = multiprocessing.get_context("fork")
items = queue.Queue(2)
begun = []
"""Threads, also those that have ended."""


def tells(verdict, *says, never=(), roles=()):
    truth.thread("main", waits=None)
    truth.note(verdict=verdict, says=list(says), never=list(never), roles=list(roles))


def waits(*words, **more):
    tells(*words, **more)
    truth.ready()


def begin(target, name=None, args=()):
    begun.append(truth.start(target, name, args))
    return begun[-1]


def end(target, name=None):
    thread = begin(target, name)
    thread.join()
    return thread


def consume():
    while items.get() != "the last":
        pass
    raise SystemExit  # as an exception that nobody catches, but silent


def queue_full():
    items.put("the last")
    end(consume, "consumer")
    waits("blocked", "the thread consumer has exited", "no thread is in consume (owed.py:", "calls get() on it")
    for number in range(3):
        items.put(number)


class Loader:
    class Worker(threading.Thread):
        def __init__(self, loader):
            super().__init__(name="loader", daemon=True)
            self.loader = loader
            self.error = None
            self.start()

        def run(self):
            try:
                self.loader.load()
            except OSError as error:
                self.error = error

    def __init__(self):
        self.loaded = threading.Event()
        self.thread = self.Worker(self)

    def load(self):
        self.read()
        self.loaded.set()

    def read(self):
        raise FileNotFoundError("shard-7 is gone")

    def wait(self):
        self.loaded.wait()


def event_unset():
    loader = Loader()
    loader.thread.join()
    waits("blocked", "the thread loader has exited", "FileNotFoundError('shard-7 is gone')", "Loader.load (owed.py:")
    loader.wait()


def event_signal():
    """A handler of a signal will set it, and a thread that had another task has ended."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    end(lambda: None, "once")
    waits("idle", never=["has exited"])
    stop.wait()


def queue_served():
    """The consumer waits for its turn elsewhere, and comes back."""
    gate = threading.Event()

    def consume_later():
        gate.wait(truth.FOREVER)
        items.get()

    items.put("the last")
    end(consume, "old")
    begin(consume_later)
    waits(None, never=["has exited", "blocked"])
    for number in range(3):
        items.put(number)


def future_kept():
    """The one that fills a queue has failed; a future has its exception, which nobody has asked for."""
    data = queue.Queue()

    def produce():
        data.put(1)
        raise ValueError("bad sample 3")

    executor = concurrent.futures.ThreadPoolExecutor(1)
    future = executor.submit(produce)
    concurrent.futures.wait([future])
    waits("blocked", "a future holds ValueError('bad sample 3')")
    while True:
        data.get()


def start_unborn():
    class Unborn(threading.Thread):
        def _bootstrap(self):  # as one that fails for want of memory
            return

    waits("blocked", "the thread unborn exited before it started to run")
    Unborn(name="unborn", daemon=True).start()


class Refused(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def refuse(_number):
    raise Refused(1, 2)


def pool_results():
    """The exception of a job cannot be read again in this process: the thread that takes the results ends."""
    threading.excepthook = lambda _: None
    pool = fork.Pool(2)
    result = pool.map_async(refuse, range(2))
    pool._result_handler.join()
    waits("blocked", pool._result_handler.name, "collects the results", "has exited", never=["the job was lost"])
    result.get()


def pool_import():
    """A module that uses a pool while it is imported: the job cannot be handed out."""
    tells(
        "deadlock",
        "(import lock of a module",
        "_handle_tasks" if sys.version_info >= (3, 10) else "Thread-",
        never=["the job was lost"],
    )
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, os.getcwd())
    with open("pool_at_import.py", "w") as out:
        out.write("import multiprocessing, truth\ndef job(x): return x\n")
        out.write("pool = multiprocessing.get_context('fork').Pool(2)\ntruth.ready()\npool.map(job, range(2))\n")
    import pool_at_import  # noqa: F401


def pool_threads():
    """The only busy one of its threads waits for the lock that whoever waits for its result holds."""
    pool, lock = multiprocessing.pool.ThreadPool(2), threading.Lock()
    tells("deadlock", "a result of multiprocessing.Pool", "(worker)", "threading.Lock", never=["worker process"])

    def job():
        with lock:
            pass

    truth.ready()
    with lock:
        pool.apply(job)


def fork_executor():
    executor = concurrent.futures.ThreadPoolExecutor(1)
    executor.submit(int).result()
    time.sleep(0.1)
    truth.go_on_in_child()
    waits("missing-workers", "ThreadPoolExecutor-0_0, which should run its job, was started before the fork")
    executor.submit(int).result()


def fork_loop():
    loop = asyncio.new_event_loop()

    async def answer():
        return 1

    begin(loop.run_forever, "io-loop")
    asyncio.run_coroutine_threadsafe(answer(), loop).result()
    truth.go_on_in_child()
    waits("missing-workers", "the thread io-loop, which runs the event loop that should complete it, was started")
    asyncio.run_coroutine_threadsafe(answer(), loop).result()


def fork_listener():
    """A queue of the log that a thread of Python's own library empties."""
    lines = queue.Queue(1)
    logging.handlers.QueueListener(lines, logging.NullHandler()).start()
    truth.go_on_in_child()
    waits(
        "missing-workers",
        "had a reference to it in QueueListener._monitor (handlers.py:",
        "was started before the fork",
    )
    while True:
        lines.put("line")


def fork_polled():
    """A loop looks whether jobs of a pool are done, as joblib's does."""
    pool = multiprocessing.pool.ThreadPool(1)
    truth.go_on_in_child()
    tells("missing-workers", "in a loop that polls 1 job of a ThreadPool", "was started before the fork")
    result = pool.apply_async(int)
    truth.ready()
    while not (lambda: result.ready())():
        time.sleep(0.05)


def fork_handed():
    """The same with processes, by a flag of an object that has the pool at hand."""

    class Batch:
        def retrieve(self):
            self.done, self.pool = False, concurrent.futures.ProcessPoolExecutor(1, mp_context=fork)
            self.pool.submit(int).result()
            truth.go_on_in_child()
            self.pool.submit(int)
            waits("missing-workers", "1 job of a ProcessPoolExecutor", "hands the jobs", "was started before the fork")
            while not self.done:
                time.sleep(0.05)

    Batch().retrieve()


def timer_cancelled():
    event = threading.Event()
    timer = threading.Timer(truth.FOREVER, event.set)
    timer.start()
    timer.cancel()
    timer.join()
    waits("blocked", f"the thread {timer.name}, which was to end this wait, has exited")
    event.wait()


def barrier_short():
    barrier = threading.Barrier(3)

    def work(number):
        if number < 2:
            barrier.wait()

    workers = [begin(work, f"worker-{number}", (number,)) for number in range(3)]
    workers[2].join()
    waits("blocked", "the thread worker-2 has exited, and no other thread is in barrier_short.<locals>.work")
    workers[0].join()


def loop_failed():
    """The task that fills the queue has ended, with an exception that nobody has looked at."""

    async def main():
        lines = asyncio.Queue()

        async def produce():
            raise ValueError("no more lines")

        task = asyncio.ensure_future(produce())
        await asyncio.sleep(0.01)
        raised = "loop_failed.<locals>.main.<locals>.produce" if sys.version_info >= (3, 11) else "produce"
        waits("blocked", "failed with ValueError('no more lines'), raised in ", f"{raised} (owed.py:")
        await lines.get()
        await task

    asyncio.run(main())


def loop_thread():
    async def main():
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def later():
            time.sleep(truth.FOREVER)
            loop.call_soon_threadsafe(stop.set)

        begin(later)
        await stop.wait()

    waits("waiting-external", never=["will ever run"])
    asyncio.run(main())


def child_pipe():
    """A child that has ended, whose pipe its own child still has. It ends when its own pipe is closed, not before the
    wait for it: one that has ended already is not waited for."""

    async def main():
        pipe = asyncio.subprocess.PIPE
        shell = f"sleep {truth.FOREVER} </dev/null & read line; exit 3"
        child = await asyncio.create_subprocess_exec("sh", "-c", shell, stdin=pipe, stdout=pipe)
        ended = asyncio.ensure_future(child.wait())
        await asyncio.sleep(0)
        child.stdin.close()
        while child.returncode is None:
            await asyncio.sleep(0.01)
        waits(
            "waiting-external",
            f"process {child.pid}, which has exited (exit status 3)",
            "at the other end",
            "(sleep)",
            never=["for the exit of process "],
        )
        await ended

    asyncio.run(main())


def on_pipe():
    os.dup2(os.pipe()[0], 0)


def prompt_pdb():
    on_pipe()
    waits("waiting-external", "the debugger pdb has stopped the program at ", "owed.py:", "(prompt_pdb), and waits")
    breakpoint()
    truth.note(after=True)


def prompt_password():
    on_pipe()
    waits("waiting-external", "getpass() asks 'Token: ' at ", "owed.py:", "(prompt_password)")
    getpass.getpass("Token: ")


def prompt_terminal():
    """Standard input is a terminal: the harness has made us a session's leader, who may make it his own."""
    _ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, 0x540E, 0)  # TIOCSCTTY
    os.tcsetpgrp(theirs, os.getpgrp())
    os.dup2(theirs, 0)
    waits("idle", never=["waiting-external"])
    input("Go on? ")


def refused_space():
    waits("starved", "MainThread (tid", "keeps failing with OSError(28, 'No space left on device')")
    with open("/dev/full", "wb", buffering=0) as file:
        while True:
            try:
                file.write(b"checkpoint")
            except OSError:
                time.sleep(0.2)


def error_nothing():
    """An exception that says nothing of the system, though its argument is the number of an error."""
    waits("idle", "while it handles KeyError(28)", never=["refused"])
    while True:
        try:
            {}[28]
        except KeyError:
            time.sleep(0.2)


def refused_before():
    """An error that the loop has kept from an earlier turn, while it sleeps outside of the handler."""
    waits("idle", "sleeps repeatedly in the loop at", "which has caught OSError(28, 'No space left on device')")
    kept = None
    for number in range(100_000):
        try:
            with open("/dev/full", "wb", buffering=0) as file:
                file.write(b"checkpoint")
        except OSError as error:
            kept = error
        time.sleep(0.2 + number % 2 / 10)
    raise kept


def refused_threads():
    """Address space of which a thread's stack would take too much: no limit of processes is the reason."""
    resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))
    threading.stack_size(256 << 20)
    waits(
        "starved",
        'RuntimeError("can\'t start new thread")',
        "of its address space limit of 200.0 MiB",
        never=["cgroup"],
    )
    while True:
        try:
            threading.Thread(target=time.sleep).start()
        except RuntimeError:
            time.sleep(0.2)


def flag_shared():
    """Memory that a process was to write to, which has been killed."""
    context = multiprocessing.get_context("fork")
    flag = context.RawValue("i", 0)
    writer = context.Process(target=lambda: os.kill(os.getpid(), signal.SIGKILL))
    writer.start()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    waits("idle", "sleeps repeatedly", f"its child process {writer.pid} (", "killed by SIGKILL) has exited")
    while not flag.value:
        time.sleep(0.05)


def connect_self(family=socket.AF_INET, address=("127.0.0.1", 0), where="SYN_SENT"):
    """A listener whose queue is full of connections of its own process."""
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen(0)
    waits("waiting-external", f"{where}, where this process itself listens and has", "unaccepted connection")
    kept = []
    while True:
        kept.append(socket.socket(family))
        kept[-1].connect(listener.getsockname())


def connect_unix():
    name = f"gdbext-{os.getpid()}"
    connect_self(socket.AF_UNIX, f"\0{name}", f"connecting to @{name}")


def server_full():
    """A server that may open no further descriptor waits for its loop's next event."""

    async def main():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with contextlib.suppress(OSError):
            while True:
                os.dup(0)
        async with server:
            await server.serve_forever()

    waits("starved", "it has 64 fds open and is limited to 64")
    asyncio.run(main())


# --- what programs of others do: tests/integration says what a report has of them -----------------------------------

table = threading.Lock()


def other(job, name="other", waits="any"):
    def work():
        truth.thread(name, waits=waits)
        begun.set()
        job()

    begun = threading.Event()
    truth.start(work, name)
    begun.wait()


def count():
    number = 0
    while True:
        number += 1


def runs_python():
    """The main thread waits for one that runs Python for ever."""
    other(count, "counter", waits=None)
    truth.main_ready(busy=True, line=count.__code__.co_firstlineno)
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
        truth.main_ready("futex")
        self.guard.acquire()


def lock_twice():
    other(managed_twice, "managed")
    Account().twice()


def lock_handed():
    """A lock that another thread is to release: nobody holds it up himself."""
    lock = threading.Lock()
    lock.acquire()
    other(lambda: [time.sleep(truth.FOREVER), lock.release()])
    truth.main_ready("futex")
    lock.acquire()


def lock_shared():
    """A semaphore in shared memory: another process may post it."""
    lock = fork.Lock()
    lock.acquire()
    waits("waiting-external")
    lock.acquire()


def backward_hook():
    """An event that nobody sets, in a hook of a backward pass; another thread sleeps."""
    import torch

    torch.set_num_threads(1)
    other(lambda: time.sleep(truth.FOREVER))
    with torch.autograd.set_detect_anomaly(True):
        loss = (torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)).sum()
        line = f"owed.py:{sys._getframe().f_lineno - 1} (backward_hook"
        node = loss.grad_fn.next_functions[0][0]
        node.register_prehook(lambda gradients: never.wait() and None)
        never = threading.Event()
        waits("blocked", f"in the backward of {node.name()}, made at ", line)
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
    truth.main_ready("wait", child=child)
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
        if third.acquire(timeout=0.02):
            taken.set()
        threading.Event().wait()

    def four():
        taken.wait()
        third.acquire()

    for job in (one, two, three, four):
        other(job, job.__name__, waits="futex")
    first_line, *more = (each.__code__.co_firstlineno + 1 for each in (one, two, three))
    truth.main_ready("futex", line=first_line, in_try=more[0], called=more[1])
    threading.Event().wait()


def rank_by_itself():
    """A rank that says so in os.environ alone, and waits for the others in the store."""
    import torch.distributed as dist

    os.environ.update(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    truth.main_ready()
    store.wait(["never"], datetime.timedelta(days=1))


def rpc_idle():
    import torch.distributed.rpc as rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{os.getcwd()}/rendezvous", num_worker_threads=2)
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
    truth.main_ready("read")
    sys.stdin.read()


def polled_futures():
    """A loop asks futures in a generator whether they are done, whose jobs wait for an event: no hang is proven."""

    def job():
        truth.thread(f"job-{len(begun)}", waits="any")
        begun.append(1)
        never.wait()

    begun, never, pool = [], threading.Event(), concurrent.futures.ThreadPoolExecutor(2)
    futures = [pool.submit(job) for _ in range(2)]
    truth.until(lambda: len(begun) >= 2)
    waits("idle", "in a loop that polls futures (future 0x", roles=["main", "job-0"])
    while not all(future.done() for future in futures):
        time.sleep(0.02)


def ask(port, verdict, *says, **never):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"x")
        waits(verdict, *says, **never)
        connection.recv(1)


def asks_itself():
    async def serve():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        ask(port, "self-deadlock", "which this process itself has not accepted yet", roles=["main"])

    asyncio.run(serve())


def asks_a_thread():
    """A task of an event loop asks a server of which a thread looks after the connections, and does not answer."""

    def look_after():
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            while True:
                selector.select()
                time.sleep(0.02)

    async def asks():
        ask(server.getsockname()[1], "waiting-external", never=["itself could"])

    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=look_after, daemon=True).start()
    asyncio.run(asks())


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")]()
