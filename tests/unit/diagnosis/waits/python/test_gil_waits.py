"""Waits for the GIL, and of the tasks of event loops, in recorded processes of several Pythons."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.cpython.tasks.awaited import Awaitable, Awaited
from gdbext.cpython.tasks.library_tasks import has_greenlets
from gdbext.diagnosis.report.thread_report import Frame, FrameKind, RunState
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread
from gdbext.diagnosis.waits.event_loops import job_clause
from gdbext.diagnosis.waits.python_waits import is_of_two_moments
from gdbext.diagnosis.waits.recognize import state_of
from support.programs.wait_processes import BITSET, DATA, STACK, Process, Python, gil, wait_of

LIBC, PYTHON = "libc.so.6", "libpython3.11.so.1.0"
GIL_STACK = [(LIBC, None), (LIBC, "pthread_cond_timedwait"), (PYTHON, None), (PYTHON, "PyEval_RestoreThread")]


def wants_gil():
    return Process({DATA: bytes(256)}).thread(1, GIL_STACK, args=(DATA + 40, BITSET, 0, STACK)).thread(2, [])


FREE = gil(locked=False, holder=None, holder_tid=None)


@pytest.mark.parametrize(
    ("state", "owner", "certainty", "being_released"),
    [
        (gil(), OwnerThread(2), OwnerCertainty.RECORDED, False),  # known by the address of its condition variable
        (FREE, None, OwnerCertainty.UNKNOWN, True),
        (gil(holder=None, holder_tid=None, mutex_owner=2), None, OwnerCertainty.UNKNOWN, True),  # handed over
        # A waiter that has the GIL's mutex for a moment hides no holder.
        (gil(holder=None, holder_tid=None, mutex_owner=3), OwnerThread(2), OwnerCertainty.INFERRED, False),
    ],
)
def test_who_has_the_gil(state, owner, certainty, being_released):
    wait = wait_of(wants_gil().thread(3, []), python=Python(state))
    assert wait.resource.kind.value == "gil"
    assert (wait.owner, wait.certainty, wait.being_released) == (owner, certainty, being_released)


def test_a_waiter_between_two_timed_waits():
    def between_two_timed_waits(frames=GIL_STACK):
        return Process({DATA: bytes(256)}).thread(1, frames, call=(1 << 64) - 1, rax=0)

    process = between_two_timed_waits().thread(2, [], call=(1 << 64) - 1, rax=0)
    assert wait_of(process, python=Python(gil())).owner == OwnerThread(2)
    assert state_of(process.snapshot(2, Python(gil()))).state is RunState.RUNNING
    held = Python(gil(holder_tid=1))
    assert wait_of(between_two_timed_waits(), python=held).owner == OwnerThread(1), "it waits for itself"
    assert state_of(between_two_timed_waits(GIL_STACK[2:]).snapshot(1, held)).state is RunState.RUNNING


def test_a_sleep_and_a_mutex_of_two_moments_and_another_futex_below_restore_thread():
    for owner, expected in ((1, True), (2, False)):
        snapshot = wants_gil().snapshot(1, Python(gil(holder=None, holder_tid=None, mutex_owner=owner)))
        snapshot.own_tid = 1
        assert is_of_two_moments(snapshot, state_of(snapshot).wait) is expected
    process = Process({DATA: bytes(256), 0x40000: bytes(64)}).thread(1, GIL_STACK, args=(0x40000 + 40, BITSET, 0))
    assert wait_of(process.thread(2, []), python=Python(gil())).resource.kind.value == "condvar"


GREENLET = "_greenlet.cpython-311-x86_64-linux-gnu.so"


@pytest.mark.parametrize("name", ["asyncio-waits-3.10", "asyncio-waits-3.14", "trio-waits-3.12"])
def test_what_tasks_await_and_those_that_hold_what_the_other_wants(replay, name):
    waiting = replay(name)
    threads = waiting.document("all-threads", "--tasks")["threads"]
    told = {task["name"]: task["awaits"] for thread in threads for task in thread.get("tasks", ())}
    for task, text in waiting.truth["awaits"].items():
        assert text.format(worker=waiting.tid("worker")) in told[task]
    if name == "trio-waits-3.12":
        verdict = waiting.diagnosis["verdict"]
        assert verdict["kind"] == "deadlock"
        assert "first waits for the lock" in verdict["summary"]
        assert "(trio.Lock), which second holds" in verdict["summary"]


@pytest.mark.parametrize(
    ("module", "file", "expected"),
    [
        *((GREENLET, f"/lib/{file}", True) for file in ("eventlet/hubs/poll.py", "gevent/hub.py")),
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


def test_the_job_that_a_task_waits_for() -> None:
    """The workers of a pool may all be at other jobs that do not end."""
    frames = [Frame(0, FrameKind.PYTHON, None, "read", file="/srv/loader.py", line=8)]
    begun = ", which no worker has begun"
    for jobs, is_pending, expected in (
        ({0x70: 1}, False, ", which thread 1 runs at loader.py:8 (read)"),
        ({0x10: 1}, True, f"{begun}: thread 1 runs another job at loader.py:8 (read)"),
        ({0x10: 1, 0x20: 2}, True, f"{begun}: 2 threads run other jobs at loader.py:8 (read)"),
        *(({}, is_pending, begun * is_pending) for is_pending in (True, False)),
    ):
        python: Any = SimpleNamespace(running_jobs=jobs, tid_of_ident=lambda ident: ident)
        process: Any = SimpleNamespace(
            python=python, thread=lambda tid: SimpleNamespace(python=frames if tid == 1 else ())
        )
        assert job_clause(process, Awaited(Awaitable.JOB, 0x70, is_pending=is_pending)) == expected
