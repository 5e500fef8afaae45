"""Waits for a worker process that was killed while a process that it had forked lives on, with copies of its pipes.

``dead_workers.py WAY FATE``. WAY: how the main thread waits for the worker (``WAYS``). FATE: ``killed``: by SIGKILL,
after it forked; ``alive``: the worker and its own child live, and it works; ``daemon``: the worker is a process that
the program's child has left behind on purpose, the child has exited, and the worker works.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import truth

fork = multiprocessing.get_context("fork")
FATE = sys.argv[2]
FOLDER = os.path.dirname(truth.path() or "/tmp/") + "/"


def tell(name, pid):
    """Write the PID to a file, which the main process reads: pipes are what this program is about."""
    with open(f"{FOLDER}{name}.tmp", "w") as file:
        file.write(str(pid))
    os.rename(f"{FOLDER}{name}.tmp", f"{FOLDER}{name}.pid")


def told(name):
    path = f"{FOLDER}{name}.pid"
    truth.until(lambda: os.path.exists(path))
    with open(path) as file:
        return int(file.read())


def wait_for_end():
    """Wait as long as the program lives."""
    program = int(os.environ["PROGRAM"])
    while os.path.exists(f"/proc/{program}/stat") and os.getppid() != 0:
        time.sleep(0.05)
    os._exit(0)


def work(_=0):
    """The job. In the process that it leaves behind, and in a worker that lives, it ends with the program."""
    if FATE == "daemon" and os.fork():
        os._exit(3)
    orphan = os.fork()
    if not orphan:
        wait_for_end()
    tell("orphan", orphan)
    tell("worker", os.getpid())
    if FATE == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_end()


def of_executor():
    with ProcessPoolExecutor(1, mp_context=fork) as executor:
        executor.submit(work).result()


def of_executor_thread():
    """As of_executor, with two workers, one of which is idle."""
    with ProcessPoolExecutor(2, mp_context=fork) as executor:
        idle = [executor.submit(time.sleep, 0.2) for _ in range(2)]
        [future.result() for future in idle]
        executor.submit(work).result()


def of_pool():
    with fork.Pool(1) as pool:
        pool.map(work, [0])


def of_joblib():
    import joblib

    joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(work)(number) for number in range(1))


def of_joblib_two():
    import joblib

    joblib.Parallel(n_jobs=2, backend="loky")([joblib.delayed(time.sleep)(0.01), joblib.delayed(work)()])


def of_pipe():
    reader, writer = fork.Pipe(duplex=False)
    process = fork.Process(target=work)
    process.start()
    writer.close()
    reader.recv()


def of_duplex():
    """The other end is a socket."""
    reader, writer = fork.Pipe()
    process = fork.Process(target=work)
    process.start()
    writer.close()
    reader.recv()


def of_compile_worker():
    """torch's pool of compile workers: a subprocess, which forks; a thread of the program reads its answers."""
    from torch._inductor.compile_worker.subproc_pool import SubprocPool

    pool = SubprocPool(1)
    pool.submit(abs, -1).result()
    future = pool.submit(time.sleep, truth.FOREVER)
    with open(f"/proc/{pool.process.pid}/task/{pool.process.pid}/children") as file:
        tell("orphan", int(file.read().split()[0]))
    tell("worker", pool.process.pid)
    if FATE == "killed":
        pool.process.kill()
    future.result()


def of_subprocess():
    """As torch's _inductor.compile_worker: the program reads the answers of a subprocess from a pipe."""
    words = [sys.executable, __file__, "worker", FATE]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        process.stdout.read(1)


WAYS = {name[3:]: way for name, way in globals().items() if name.startswith("of_")}


def announce():
    facts = {"worker": told("worker"), "orphan": told("orphan")}

    def is_over():
        try:
            with open(f"/proc/{facts['worker']}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    truth.until(is_over if FATE == "killed" else lambda: True)
    truth.note(**facts)
    truth.ready()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        work()
    os.environ["PROGRAM"] = str(os.getpid())
    truth.thread("main")
    truth.start(announce)
    WAYS[sys.argv[1]]()
