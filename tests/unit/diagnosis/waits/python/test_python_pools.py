"""Pools' workers idle only in the call in which they wait for work; an interpreter idles at its prompt."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.thread_report import Frame, FrameKind, RunState
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.recognize import state_of
from support.programs.wait_processes import DATA, LOOP, Process

POOL = "/lib/python3.11/multiprocessing/"
RECEIVES, SENDS = f"{POOL}connection.py:Connection._recv", f"{POOL}connection.py:Connection._send"
POLLS, LOCKS = f"{POOL}connection.py:Connection.poll", f"{POOL}synchronize.py:SemLock.__enter__"
GETS, FEEDS, WORKS = f"{POOL}queues.py:SimpleQueue.get", f"{POOL}queues.py:Queue._feed", f"{POOL}pool.py:worker"
PROCESS_WORKER = "/concurrent/futures/process.py:_process_worker"
MANAGER = "/concurrent/futures/process.py:M.wait_result_broken_or_wakeup"
SELECTS, LOKY = "/selectors.py:PollSelector.select", "/loky/process_executor.py:_process_worker"
BILLIARD = "/billiard/pool.py:"
WORK_LOOP = f"{BILLIARD}Worker.workloop"
CASES = [
    (["threading.py:wait", FEEDS], pools.QUEUE_FEEDER),
    *((frames, None) for frames in ([SENDS, FEEDS], [FEEDS], [WORKS], [LOCKS, WORKS], [PROCESS_WORKER], [MANAGER])),
    *(([first, GETS, WORKS], pools.MULTIPROCESSING) for first in (RECEIVES, LOCKS)),
    ([LOCKS, f"{POOL}queues.py:SimpleQueue.put", WORKS], None),
    ([f"{POOL}pool.py:Pool._handle_tasks"], pools.MULTIPROCESSING),
    ([RECEIVES, f"{POOL}queues.py:Queue.get", PROCESS_WORKER], pools.PROCESS_WORKER),
    (["/concurrent/futures/thread.py:_worker"], pools.FUTURES),
    ([SENDS, f"{POOL}pool.py:Pool._handle_tasks"], None),
    (["threading.py:wait", "queue.py:put", "/torch/utils/data/_utils/pin_memory.py:_pin_memory_loop"], None),
    ([SELECTS, f"{POOL}connection.py:wait", MANAGER], pools.EXECUTOR_MANAGER),
    ([SELECTS, f"{POOL}forkserver.py:main"], pools.FORK_SERVER),
    ([f"{POOL}resource_tracker.py:main"], pools.RESOURCE_TRACKER),
    (["/train.py:step", "/grpc/_server.py:_serve"], None),
    (["/grpc/_server.py:_serve"], pools.GRPC),
    ([POLLS, f"{POOL}queues.py:Queue.get", LOKY], pools.LOKY),
    (["/billiard/connection.py:Connection.poll", f"{BILLIARD}_recv", f"{BILLIARD}receive", WORK_LOOP], pools.BILLIARD),
    *((frames, None) for frames in ([LOKY], ["/tasks.py:add", WORK_LOOP])),
]


@pytest.mark.parametrize(("frames", "pool"), CASES)
def test_where_workers_idle(frames, pool):
    calls = (each.rpartition(":") for each in frames)
    python = [Frame(0, FrameKind.PYTHON, None, name, file=file) for file, _, name in calls]
    process = Process({DATA: bytes(64)}).thread(1, [("libc.so.6", None)], call=0, args=(3,), python=python)
    assert state_of(process.snapshot(1)).pool is pool


def test_the_prompt_is_idle_and_so_is_standard_input():
    frames = [("libc.so.6", "select"), ("libpython3.11.so.1.0", "PyOS_Readline"), LOOP]
    for each, call, args in ((frames, 23, (1, 0, 0, 0, 0)), ([("libc.so.6", "read"), LOOP], 0, (0,))):
        assert state_of(Process().thread(1, each, call=call, args=args).snapshot()).state is RunState.IDLE


def test_prompts_written_in_python():
    for files, state in {
        ("/lib/python3.13/_pyrepl/unix_console.py",): "idle",
        ("/lib/selectors.py", "/lib/asyncio/base_events.py", "/x/ipykernel/kernelapp.py"): "idle",
        ("/lib/socket.py", "/home/me/cell.py", "/x/ipykernel/kernelapp.py"): "waiting",
        ("/lib/selectors.py", "/lib/asyncio/base_events.py", "/home/me/server.py"): "waiting",
    }.items():
        python = [Frame(level, FrameKind.PYTHON, None, "f", file=file) for level, file in enumerate(files)]
        process = Process().thread(1, [("libc.so.6", "read"), LOOP], call=0, args=(3,), python=python)
        assert state_of(process.snapshot()).state.value == state
