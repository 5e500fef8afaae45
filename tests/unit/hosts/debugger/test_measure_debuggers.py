"""scripts/measure_debuggers.py: when a number is reached, and its page; what harm to a job is."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from support.source import script_module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_module.load("measure_debuggers")


class Job:
    """Is harmed by every second kill."""

    made = 0
    is_well, pid = True, 1

    def __init__(self, _loads: bool = False) -> None:
        Job.made += 1
        self._kills = 0

    def runs_by(self, session: Any, command: str) -> None:
        session.run(command)

    def harm(self) -> tuple[str, float]:
        self._kills += 1
        self.is_well = self._kills % 2 == 1
        return ("" if self.is_well else "ended with status -5"), 0.5

    def close(self) -> None:
        pass


class Debugger:
    """Notes its commands."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.process = self

    def attached(self, _pid: int) -> Debugger:
        return self

    def __enter__(self) -> Debugger:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, command: str) -> None:
        self.commands.append(command)

    send_console = run

    def kill(self) -> None:
        self.commands.append("killed")

    def wait(self) -> None:
        pass


def test_each_harm_counts_and_gets_another_job(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "DebuggedJob", Job)
    monkeypatch.setattr(script.time, "sleep", lambda _: None)
    debugger = Debugger()
    row = script.kills("gdb", debugger, "dispatch-break call mm --continue", 4)
    assert row.measured == "2 of 4 harmed: 2 ended with status -5"
    assert row.reached is False
    assert Job.made == 2
    assert debugger.commands == ["dispatch-break call mm --continue", "continue", "killed"] * 4
    assert script.kills("gdb", debugger, "dispatch-trace mm --engine breakpoints", 2).reached is None, "no promise"


def test_the_page_has_a_row_for_each_number(script: ModuleType) -> None:
    text = script.page([script.Row("kill", "gdb18", "kill -9 during X", "0 of 50 harmed", True)], 0.5)
    assert "| kill | gdb18 | kill -9 during X | 0 of 50 harmed | yes |" in text
