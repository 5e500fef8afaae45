"""A DataLoader that waits for its worker processes, and who waits for the end of processes through their pipes."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits import torch_waits
from gdbext.engine.targets.system.peer import ChildProcess, ProcessState
from support.programs.wait_processes import LOOP, Outside, Process, Python, wait_of

FILE = "/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
STOPPED = ChildProcess(50, "python", ProcessState.STOPPED)


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(torch_waits, "awaited_batch", lambda _runtime, _states: torch_waits.AwaitedBatch((50, 51)))


class PythonWithThreads(Python):
    runtime = None

    def states(self, _tid):
        return ()


def polls(*files):
    named = [(each, "f") if isinstance(each, str) else each for each in files]
    frames = [Frame(level, FrameKind.PYTHON, name, file=file) for level, (file, name) in enumerate(named)]
    process = Process().thread(1, [("libc.so.6", "poll"), LOOP], call=7, args=(0, 0, 0xFFFFFFFF), python=frames)
    return wait_of(process, python=PythonWithThreads(), outside=Outside(STOPPED))


@pytest.mark.usefixtures("workers")
def test_what_ends_the_wait_is_a_worker():
    wait = polls("/lib/python3.11/multiprocessing/connection.py", FILE, "train.py")
    assert wait.kind is WaitKind.CHILD_PROCESS
    assert wait.resource.name == "the DataLoader's worker processes 50 (python, stopped) and 51"
    assert wait.children == (STOPPED, ChildProcess(51))
    assert wait.evidence[-1].startswith("below DataLoader's code it waits in poll on")


@pytest.mark.usefixtures("workers")
def test_a_poll_of_anybody_else_stays_one():
    assert polls("/lib/python3.11/multiprocessing/connection.py", "train.py").kind is WaitKind.IO


def test_the_worker_that_makes_the_next_batch_is_named(monkeypatch):
    batch = torch_waits.AwaitedBatch((51,), 9)
    monkeypatch.setattr(torch_waits, "awaited_batch", lambda _runtime, _states: batch)
    wait = polls("/lib/python3.11/multiprocessing/connection.py", FILE, "train.py")
    assert wait.resource.name == "the DataLoader's worker process 51, which makes batch 9"
    assert wait.children == (ChildProcess(51),)


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("/lib/python3.11/multiprocessing/popen_fork.py", "Popen.wait"),
        ("/lib/python3.8/multiprocessing/popen_fork.py", "wait"),
        ("/lib/python3.11/multiprocessing/popen_forkserver.py", "Popen.poll"),
        ("/site-packages/torch/multiprocessing/spawn.py", "ProcessContext.join"),
    ],
)
def test_who_joins_processes_through_their_pipes_waits_for_them(monkeypatch, file, function):
    monkeypatch.setattr(torch_waits, "joined_processes", lambda _runtime, _states: (50, 51))
    wait = polls("/lib/python3.11/multiprocessing/connection.py", (file, function), "train.py")
    assert wait.kind is WaitKind.CHILD_PROCESS
    assert wait.resource.name == "child processes 50 (python, stopped) and 51"
    assert wait.children == (STOPPED, ChildProcess(51))


def test_another_function_of_that_file_joins_nothing(monkeypatch):
    monkeypatch.setattr(torch_waits, "joined_processes", lambda _runtime, _states: (50,))
    wait = polls(
        "/lib/python3.11/multiprocessing/connection.py", ("/site-packages/torch/multiprocessing/spawn.py", "f")
    )
    assert wait.kind is WaitKind.IO
