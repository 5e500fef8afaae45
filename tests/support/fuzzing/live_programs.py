"""Small processes that belong to the campaign: it stops, reads and overwrites them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from support.programs import plain_program, procfs
from support.programs.harness import wait_until

from . import folders

_DEADLOCK = """
import threading
threading.stack_size(1 << 18)
locks = [threading.RLock(), threading.RLock()]
both = threading.Barrier(3)
def work(number):
    with locks[number]:
        both.wait()
        with locks[1 - number]:
            pass
threads = [threading.Thread(target=work, args=(n,), daemon=True, name=f"worker-{n}") for n in (0, 1)]
threads.append(threading.Thread(target=threading.Event().wait, daemon=True))
for thread in threads:
    thread.start()
both.wait()
print("ready", flush=True)
threads[0].join()
"""


def start(name: str) -> subprocess.Popen[bytes]:
    """A process of that program, once all of its threads wait: ``plain`` (C) or ``python``."""
    plain = folders.kept() / "plain program"
    if name == "plain" and not plain.exists():
        plain_program.build(folders.kept())
    command = [str(plain), "3"] if name == "plain" else [sys.executable, "-I", "-S", "-c", _DEADLOCK]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=end_with_parent,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    assert process.stdout is not None
    process.stdout.readline()
    wait_until(lambda: is_asleep(process.pid), "all of its threads wait")
    return process


def is_asleep(pid: int) -> bool:
    try:
        return {procfs.state(pid, tid) for tid in procfs.threads(pid)} == {"S"}
    except OSError:
        return False


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone (PR_SET_PDEATHSIG of prctl(2))."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextlib.contextmanager
def running(name: str) -> Iterator[int]:
    """The pid of such a process for the duration of a block."""
    process = start(name)
    try:
        yield process.pid
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    while process.poll() is None:  # its threads, too, are ours to collect, where they ended while we traced them
        os.waitpid(-1, 0x40000000)  # __WALL
    if process.stdout is not None:
        process.stdout.close()
