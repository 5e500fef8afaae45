"""The main thread has ended: the threads that keep the process alive are named, with their lines."""

from __future__ import annotations

import pytest

from support.programs.harness import Start


@pytest.mark.parametrize(("how", "ended"), [("native", "has exited"), ("python", "is at its end")])
@pytest.mark.parametrize("work", ["waits", "polls"])
def test_who_keeps_the_process_alive(inferior: Start, how: str, ended: str, work: str) -> None:
    target = inferior("ended_main", how, work)
    summary = target.dispatch("dispatch-diagnose", debugger="none").document["verdict"]["summary"]
    keeper = f"keeper (tid {target.tid('keeper')}), at "
    assert f" The main thread {ended}; the process lives on for {keeper}" in summary
    assert f"ended_main.py:{target.truth['line']} ({work})." in summary
