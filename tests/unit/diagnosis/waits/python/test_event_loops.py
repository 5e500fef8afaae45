"""Tasks of event loops: what each awaits, in recorded processes of several Pythons."""

from __future__ import annotations

import pytest


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
