"""NO_PYTHON: every question about a process without Python is answered, without an error in the log."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from gdbext.cpython.objects.py_ref import PyRef, PyVariables
from gdbext.cpython.tasks.loops import RunningLoop, RunningTask
from gdbext.cpython.threads.runtime import NO_PYTHON, ThreadTable
from gdbext.cpython.wait_view import PythonWaitView
from gdbext.errors import BadData
from support.programs.wait_processes import python_wait

QUESTIONS = [name for name in vars(PythonWaitView) if not name.startswith("_") and name not in ("awaited", "runtime")]
GIVEN = {"int": 7, "str": "flag", "PyRef": PyRef(NO_PYTHON, 0x9000), "PythonWait": python_wait("event")}
GIVEN |= {"Sequence[PolledObject]": (), "Collection[int]": (7,), "Sequence[RunningLoop]": ()}
GIVEN["RunningTask"] = RunningTask(0x9000, "", 0, (), 0, 0, PyVariables(NO_PYTHON), ())
GIVEN["RunningLoop"] = RunningLoop(0x9000, "", None, 0, None, 0, ())
"""An argument for each type of parameter."""


@pytest.mark.parametrize("name", QUESTIONS)
def test_nothing_is_known(name: str) -> None:
    def note(error: Exception, where: str) -> None:
        pytest.fail(f"{where}: {error}")

    answer: Any = getattr(PythonWaitView(ThreadTable(NO_PYTHON, note), note), name)
    if callable(answer):
        answer = answer(*(GIVEN[str(each.annotation)] for each in inspect.signature(answer).parameters.values()))
    assert not answer


def test_its_memory_cannot_be_read() -> None:
    value = PyRef(NO_PYTHON, 0x9000)
    assert (value.int(), value.type, NO_PYTHON.globals_of("os")["environ"].str()) == (None, "", "")
    with pytest.raises(BadData, match="no Python in this process"):
        value.read(lambda python, address: python.objects.text(address))
