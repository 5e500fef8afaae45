"""A DataLoader that waits for its worker processes, and who waits for the end of processes through their pipes."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits import torch_waits
from gdbext.engine.targets.system.peer import ChildProcess, ProcessState
from support.programs.wait_processes import LOOP, Outside, Process, Python, wait_of

CONNECTION = "/lib/python3.11/multiprocessing/connection.py"
FILE = "/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
STOPPED = ChildProcess(50, "python", ProcessState.STOPPED)


class PythonWithThreads(Python):
    runtime = None

    def states(self, _tid):
        return ()


def polls(*files):
    named = [(each, "f") if isinstance(each, str) else each for each in files]
    frames = [Frame(level, FrameKind.PYTHON, name, file=file) for level, (file, name) in enumerate(named)]
    process = Process().thread(1, [("libc.so.6", "poll"), LOOP], call=7, args=(0, 0, 0xFFFFFFFF), python=frames)
    return wait_of(process, python=PythonWithThreads(), outside=Outside(STOPPED))


@pytest.mark.parametrize(
    ("batch", "name"),
    [
        (((50, 51),), "the DataLoader's worker processes 50 (python, stopped) and 51"),
        (((51,), 9), "the DataLoader's worker process 51, which makes batch 9"),
    ],
)
def test_what_ends_the_wait_is_a_worker(monkeypatch, batch, name):
    monkeypatch.setattr(torch_waits, "awaited_batch", lambda *_: torch_waits.AwaitedBatch(*batch))
    wait = polls(CONNECTION, FILE, "train.py")
    assert (wait.kind, wait.resource.name) == (WaitKind.CHILD_PROCESS, name)
    assert [child.pid for child in wait.children] == [*batch[0]]
    assert wait.evidence[-1].startswith("below DataLoader's code it waits in poll on")
    assert polls(CONNECTION, "train.py").kind is WaitKind.IO, "a poll of anybody else stays one"


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
    wait = polls(CONNECTION, (file, function), "train.py")
    assert (wait.kind, wait.children) == (WaitKind.CHILD_PROCESS, (STOPPED, ChildProcess(51)))
    assert wait.resource.name == "child processes 50 (python, stopped) and 51"
    assert polls(CONNECTION, (file, "f")).kind is WaitKind.IO, "another function of that file joins nothing"
