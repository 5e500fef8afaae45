"""Tasks of event loops: what each awaits, in recorded processes of several Pythons."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("python", ["3.10", "3.14"])
def test_what_tasks_await(replay, python):
    waiting = replay(f"asyncio-waits-{python}")
    threads = waiting.document("all-threads", "--tasks")["threads"]
    told = {task["name"]: task["awaits"] for thread in threads for task in thread.get("tasks", ())}
    worker = waiting.tid("worker")
    for name, text in waiting.truth["awaits"].items():
        assert text.format(worker=worker) in told[name]
