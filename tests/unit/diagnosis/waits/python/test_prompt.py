"""An interpreter that waits for its user."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.thread_report import Frame, FrameKind, RunState
from gdbext.diagnosis.waits.recognise import state_of
from support.programs.wait_processes import LOOP, Process


def test_the_prompt_is_idle_and_so_is_standard_input():
    frames = [("libc.so.6", "select"), ("libpython3.11.so.1.0", "PyOS_Readline"), LOOP]
    assert state_of(Process().thread(1, frames, call=23, args=(1, 0, 0, 0, 0)).snapshot()).state is RunState.IDLE
    reads = Process().thread(1, [("libc.so.6", "read"), LOOP], call=0, args=(0,))
    assert state_of(reads.snapshot()).state is RunState.IDLE


@pytest.mark.parametrize(
    ("files", "state"),
    [
        (["/lib/python3.13/_pyrepl/unix_console.py"], "idle"),
        (
            ["/lib/python3.11/selectors.py", "/lib/python3.11/asyncio/base_events.py", "/x/ipykernel/kernelapp.py"],
            "idle",
        ),
        (["/lib/python3.11/socket.py", "/home/me/cell.py", "/x/ipykernel/kernelapp.py"], "waiting"),
        (["/lib/python3.11/selectors.py", "/lib/python3.11/asyncio/base_events.py", "/home/me/server.py"], "waiting"),
    ],
)
def test_prompts_written_in_python(files, state):
    python = [Frame(level, FrameKind.PYTHON, "f", file=file) for level, file in enumerate(files)]
    process = Process().thread(1, [("libc.so.6", "read"), LOOP], call=0, args=(3,), python=python)
    assert state_of(process.snapshot()).state.value == state
