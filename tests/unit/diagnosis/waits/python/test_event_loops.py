"""Tasks of event loops: what each awaits, in recorded processes of several Pythons."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.cpython.tasks.awaited import Awaitable, Awaited
from gdbext.cpython.tasks.library_tasks import has_greenlets
from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.waits.event_loops import job_clause

GREENLET = "_greenlet.cpython-311-x86_64-linux-gnu.so"


@pytest.mark.parametrize("name", ["asyncio-waits-3.10", "asyncio-waits-3.14", "trio-waits-3.12"])
def test_what_tasks_await(replay, name):
    waiting = replay(name)
    threads = waiting.document("all-threads", "--tasks")["threads"]
    told = {task["name"]: task["awaits"] for thread in threads for task in thread.get("tasks", ())}
    worker = waiting.tid("worker")
    for task, text in waiting.truth["awaits"].items():
        assert text.format(worker=worker) in told[task]


def test_tasks_of_trio_that_hold_what_the_other_wants(replay):
    """The lock itself keeps its owner, so that nothing is inferred."""
    found = replay("trio-waits-3.12").document("dispatch-diagnose")
    assert found["verdict"]["kind"] == "deadlock"
    assert "first waits for the lock" in found["verdict"]["summary"]
    assert "(trio.Lock), which second holds" in found["verdict"]["summary"]


@pytest.mark.parametrize(
    ("module", "file", "expected"),
    [
        (GREENLET, "/lib/eventlet/hubs/poll.py", True),
        (GREENLET, "/lib/gevent/hub.py", True),
        (GREENLET, "/lib/asyncio/base_events.py", False),
        ("libc.so.6", "/lib/gevent/hub.py", False),
    ],
)
def test_greenlets_are_looked_for_where_a_hub_switches_to_them(module: str, file: str, expected: bool) -> None:
    """SQLAlchemy loads greenlet, too, and switches to its own by asyncio: those are no tasks, and asyncio's are."""
    stack = SimpleNamespace(frames=[SimpleNamespace(file="/srv/app.py"), SimpleNamespace(file=file)])
    runtime = SimpleNamespace(
        modules=SimpleNamespace(modules=[SimpleNamespace(name=module)]),
        thread_states=lambda: [0],
        frames=SimpleNamespace(stack=lambda _: stack),
    )
    assert has_greenlets(cast(Any, runtime)) is expected


@pytest.mark.parametrize(
    ("jobs", "is_pending", "expected"),
    [
        ({0x70: 1}, False, ", which thread 1 runs at loader.py:8 (read)"),
        ({0x10: 1}, True, ", which no worker has begun: thread 1 runs another job at loader.py:8 (read)"),
        ({0x10: 1, 0x20: 2}, True, ", which no worker has begun: 2 threads run other jobs at loader.py:8 (read)"),
        ({}, True, ", which no worker has begun"),
        ({}, False, ""),
    ],
)
def test_the_job_that_a_task_waits_for(jobs: dict[int, int], is_pending: bool, expected: str) -> None:
    """The workers of a pool may all be at other jobs that do not end."""
    frames = [Frame(0, FrameKind.PYTHON, "read", file="/srv/loader.py", line=8)]
    process = SimpleNamespace(thread=lambda tid: SimpleNamespace(python=frames if tid == 1 else ()))
    python = SimpleNamespace(running_jobs=jobs, tid_of_ident=lambda ident: ident)
    found = Awaited(Awaitable.JOB, 0x70, is_pending=is_pending)
    assert job_clause(cast(Any, process), cast(Any, python), found) == expected
