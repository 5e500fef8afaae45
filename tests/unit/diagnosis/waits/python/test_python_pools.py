"""A pool's worker idles only in the call in which it waits for work."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.recognise import state_of
from support.programs.wait_processes import DATA, Process

POOL = "/lib/python3.11/multiprocessing/"
CASES = [
    (["threading.py:wait", f"{POOL}queues.py:Queue._feed"], pools.QUEUE_FEEDER),
    ([f"{POOL}connection.py:Connection._send", f"{POOL}queues.py:Queue._feed"], None),
    ([f"{POOL}queues.py:Queue._feed"], None),
    (
        [f"{POOL}connection.py:Connection._recv", f"{POOL}queues.py:SimpleQueue.get", f"{POOL}pool.py:worker"],
        pools.MULTIPROCESSING,
    ),
    (
        [f"{POOL}synchronize.py:SemLock.__enter__", f"{POOL}queues.py:SimpleQueue.get", f"{POOL}pool.py:worker"],
        pools.MULTIPROCESSING,
    ),
    ([f"{POOL}synchronize.py:SemLock.__enter__", f"{POOL}queues.py:SimpleQueue.put", f"{POOL}pool.py:worker"], None),
    ([f"{POOL}pool.py:worker"], None),
    ([f"{POOL}pool.py:Pool._handle_tasks"], pools.MULTIPROCESSING),
    ([f"{POOL}synchronize.py:SemLock.__enter__", f"{POOL}pool.py:worker"], None),
    (["/concurrent/futures/process.py:_process_worker"], None),
    (
        [
            f"{POOL}connection.py:Connection._recv",
            f"{POOL}queues.py:Queue.get",
            "/concurrent/futures/process.py:_process_worker",
        ],
        pools.PROCESS_WORKER,
    ),
    (["/concurrent/futures/thread.py:_worker"], pools.FUTURES),
    ([f"{POOL}connection.py:Connection._send", f"{POOL}pool.py:Pool._handle_tasks"], None),
    (["threading.py:wait", "queue.py:put", "/torch/utils/data/_utils/pin_memory.py:_pin_memory_loop"], None),
    (
        [
            "/selectors.py:PollSelector.select",
            f"{POOL}connection.py:wait",
            "/concurrent/futures/process.py:M.wait_result_broken_or_wakeup",
        ],
        pools.EXECUTOR_MANAGER,
    ),
    (["/concurrent/futures/process.py:M.wait_result_broken_or_wakeup"], None),
    (["/selectors.py:PollSelector.select", f"{POOL}forkserver.py:main"], pools.FORK_SERVER),
    ([f"{POOL}resource_tracker.py:main"], pools.RESOURCE_TRACKER),
    (["/train.py:step", "/grpc/_server.py:_serve"], None),
    (["/grpc/_server.py:_serve"], pools.GRPC),
    (
        [
            f"{POOL}connection.py:Connection.poll",
            f"{POOL}queues.py:Queue.get",
            "/loky/process_executor.py:_process_worker",
        ],
        pools.LOKY,
    ),
    (["/loky/process_executor.py:_process_worker"], None),
    (
        [
            "/billiard/connection.py:Connection.poll",
            "/billiard/pool.py:_recv",
            "/billiard/pool.py:receive",
            "/billiard/pool.py:Worker.workloop",
        ],
        pools.BILLIARD,
    ),
    (["/tasks.py:add", "/billiard/pool.py:Worker.workloop"], None),
]


@pytest.mark.parametrize(("frames", "pool"), CASES)
def test_where_workers_idle(frames, pool):
    calls = (each.rpartition(":") for each in frames)
    python = [Frame(0, FrameKind.PYTHON, name, file=file) for file, _, name in calls]
    process = Process({DATA: bytes(64)}).thread(1, [("libc.so.6", None)], call=0, args=(3,), python=python)
    assert state_of(process.snapshot(1)).pool is pool
