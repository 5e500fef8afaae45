"""Measure the pytest plugin: 22 files of tests that hang, each in its own way.

Prints for each when its verdict was on the screen, in seconds after the threshold, and whether a process is left. A
file counts as explained when what truly hangs there is named. Exit status 1 where one was not explained, or later than
two seconds after the threshold.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 2.0
QUICK, SLOW = 2, float(os.environ.get("GDBEXT_SLOW_THRESHOLD", "12"))
"""Thresholds in seconds: of files that import no torch, and of those that do, which takes some seconds."""
HEAD = """\
import ctypes, multiprocessing, os, queue, signal, subprocess, sys, threading, time
def stand(*_):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
"""
CONFTEST = """\
import os, pathlib, time, pytest
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    pathlib.Path("began").write_text(repr(time.time()))
@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector):
    pathlib.Path("began").write_text(repr(time.time()))
"""
RANK = """\
import threading
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
dist.barrier()
"""


class HangingFile(NamedTuple):
    """A file of tests: its source behind HEAD, the words of a right verdict, the threshold, more words for pytest."""

    name: str
    source: str
    verdict: str
    threshold: float = QUICK
    words: tuple[str, ...] = ()


def in_test(*lines: str) -> str:
    """The source of a test with these lines."""
    return "def test_it():\n" + "".join(f"    {line}\n" for line in lines)


def in_process(method: str) -> str:
    """The source of a test whose child process hangs."""
    return in_test(f"p = multiprocessing.get_context('{method}').Process(target=stand)", "p.start()", "p.join()")


SELF = "seems to hold itself"
TWO_LOCKS = """\
A, B = threading.Lock(), threading.Lock()
def take(one, two):
    with one:
        time.sleep(0.3)
        with two:
            pass
def test_it():
    threading.Thread(target=take, args=(A, B), daemon=True).start()
    take(B, A)
"""
POOL = """\
def test_it():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(stand, range(2))
"""
TORCHRUN = """\
def test_it():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, "rank.py"])
"""
ASYNCIO = """\
import asyncio
async def main():
    await asyncio.Event().wait()
def test_it():
    asyncio.run(main())
"""
FIXTURE = """\
import pytest
@pytest.fixture
def late():
    stand()
def test_it(late):
    pass
"""
LOADER = """\
class Late:
    def __len__(self):
        return 4
    def __getitem__(self, at):
        stand()
def test_it():
    from torch.utils.data import DataLoader
    next(iter(DataLoader(Late(), num_workers=2)))
"""
MODE = """\
def test_it():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            stand()
    with Mode():
        torch.ones(2) + 1
"""
MUTEX, LOCK = "mutex = ctypes.create_string_buffer(64)", "ctypes.PyDLL(None).pthread_mutex_lock(mutex)"
FILES = (
    HangingFile("join", in_test("t = threading.Thread(target=stand, daemon=True)", "t.start()", "t.join()"), SELF),
    HangingFile("lock twice", in_test("stand()"), SELF),
    HangingFile("two locks", TWO_LOCKS, "deadlock|hold"),
    HangingFile("queue", in_test("queue.Queue().get()"), "queue|nobody|waits for"),
    HangingFile("event", in_test("threading.Event().wait()"), "Event|waits for"),
    HangingFile("fork", in_test("child = os.fork() or stand()", "os.waitpid(child, 0)"), SELF),
    HangingFile("Process by fork", in_process("fork"), SELF),
    HangingFile("Process by spawn", in_process("spawn"), SELF, 6),
    HangingFile("Pool by spawn", POOL, SELF, 6),
    HangingFile("subprocess", in_test("subprocess.run(['sleep', '1000'])"), "waits for child process"),
    HangingFile("pipe", in_test("os.read(os.pipe()[0], 1)"), "pipe"),
    HangingFile("torchrun", TORCHRUN, "rank 1 is late", 2 * SLOW),
    HangingFile(
        "torch mp.spawn", in_test("import torch", "torch.multiprocessing.spawn(stand, nprocs=2)"), SELF, 2 * SLOW
    ),
    HangingFile("GIL held", in_test(MUTEX, LOCK, LOCK), "mutex"),
    HangingFile("GIL busy", in_test("import re", "re.match('(a+)+$', 'a' * 64 + 'b')"), "runs|running|busy"),
    HangingFile("SIGSTOP", in_test("os.kill(os.getpid(), signal.SIGSTOP)"), "SIGSTOP"),
    HangingFile("asyncio", ASYNCIO, "main|Event|event loop"),
    HangingFile("fixture", FIXTURE, SELF),
    HangingFile("collection", "stand()\n", SELF),
    HangingFile("DataLoader", LOADER, SELF, SLOW),
    HangingFile("pytest-xdist", in_test("stand()"), SELF, 3, ("-n", "2")),
    HangingFile("TorchDispatchMode", MODE, f"aten::|{SELF}", SLOW),
)


class Measured(NamedTuple):
    """Seconds from the threshold to the first verdict and to the right one (None: it did not come), processes left."""

    first: float | None
    right: float | None
    left: int


def measure(file: HangingFile, place: Path) -> Measured:
    """Run one of them."""
    (place / "test_it.py").write_text(HEAD + file.source)
    plugin = ["-p", "gdbext.hosts.pytest_plugin", "-p", "no:cacheprovider", f"--gdbext-threshold={file.threshold}"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "--gdbext-kill", *file.words, "test_it.py"]
    name, value = "GDBEXT_MARK", f"{place.name}-{time.time()}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "PYTHONUNBUFFERED": "1"}
    environment[name] = value
    first = right = None
    with subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:
            now = time.time()
            if not line.startswith("gdbext: ") or ", in full:" in line:
                continue
            due = float((place / "began").read_text()) + file.threshold
            if first is None and re.match(r"gdbext: process \d+ \(", line):
                first = now - due
            if right is None and first is not None and re.search(file.verdict, line):
                right = now - due
    time.sleep(0.3)
    mark = f"{name}={value}"
    return Measured(
        first, right, sum(has_mark(each.name, mark) for each in Path("/proc").iterdir() if each.name.isdecimal())
    )


def has_mark(pid: str, mark: str) -> bool:
    """That process was started by the run with this mark."""
    try:
        return mark.encode() in Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return False


def main() -> int:
    """Measure those whose names have a word of the command line in them, or all."""
    wanted = [file for file in FILES if not sys.argv[1:] or any(word in file.name for word in sys.argv[1:])]
    explained = in_time = left = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "conftest.py").write_text(CONFTEST)
        (place / "rank.py").write_text(RANK)
        for file in wanted:
            found = measure(file, place)
            explained += found.right is not None
            in_time += found.right is not None and found.right <= LIMIT
            left += found.left
            times = ["-" if each is None else f"{each:.2f} s" for each in (found.first, found.right)]
            print(f"{file.name:20} first {times[0]:>7}  right {times[1]:>7}  left {found.left}", flush=True)
    load = os.getloadavg()[0]
    print(
        f"{explained} of {len(wanted)} explained, {in_time} within {LIMIT:g} s, {left} processes left; load {load:.1f}"
    )
    return int(in_time < len(wanted) or left > 0)


if __name__ == "__main__":
    sys.exit(main())
