"""dispatch-frames: the debuggers' own stacks show what dispatch-bt --native shows, frame for frame."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.installed import lldbs
from support.programs.harness import UNDEMANGLED, Inferior, Outcome, Start, run
from support.programs.user_debuggers import IMPORT, SOURCE, gdb

pytestmark = [pytest.mark.torch, pytest.mark.program("meta-mm")]

ADDED = re.compile(
    r"\[(?:call|redispatch)\] op=\[aten::\w+\], key=\[\w+\]|(?<=[ `])[\w.<>]+(?= (?:\(\) )?at \S+\.py:\d+)"
)
NATIVE = re.compile(r"at::_ops::\w+::(?:call|redispatch)|_PyEval_EvalFrameDefault")


def expected(thread: dict[str, Any]) -> list[str]:
    """The added frames, and the functions that they stand in front of, innermost first."""
    steps = {step["level"]: step for step in thread["dispatch"]}
    found = []
    for frame in thread["frames"]:
        step = steps.get(frame["level"])
        if frame["kind"] == "python":
            found.append(frame["function"])
        elif step is not None:
            found.append(f"[{step['event']}] op=[{step['op']}], key=[{step['key']}]")
        found += NATIVE.findall(frame["function"]) if frame["kind"] == "native" else []
    return found


def shown(stack: str) -> list[str]:
    lines = [ADDED.findall(line)[:1] or NATIVE.findall(line.partition(" at ")[0])[:1] for line in stack.splitlines()]
    return [each for line in lines for each in line]


@pytest.fixture
def hung(inferior: Start) -> Inferior:
    """On an interpreter without debug information, as users have it."""
    return inferior("meta-mm", python="debian")


def stacks(outcome: Outcome) -> list[str]:
    shown = subprocess.run(["c++filt"], input=outcome.stdout, capture_output=True, text=True, check=True).stdout
    return re.findall(r"^BEGIN$(.*?)^END$", shown, re.MULTILINE | re.DOTALL)


@pytest.mark.gdb
@pytest.mark.compiler
def test_gdb(hung: Inferior) -> None:
    bt = ["echo BEGIN\\n", "bt", "echo END\\n"]
    selected = ["frame 3", "echo BEGIN\\n", "frame", "echo END\\n"]
    commands = [SOURCE, *bt, "dispatch-frames on", *bt, "bt 1", "dispatch-bt --native --json"]
    commands += [*selected, "dispatch-frames off", *bt, *selected]
    outcome = gdb(*commands, options=UNDEMANGLED, pid=hung.pid)
    before, with_frames, frame, after, same_frame = stacks(outcome)
    (document,) = outcome.documents
    assert shown(with_frames) == expected(document["threads"][0])
    assert "[redispatch] op=[aten::mm], key=[Meta]" in with_frames
    assert " meta_mm () at " in with_frames
    assert before == after
    numbers = re.compile(r"^#\d+ +\S+", re.MULTILINE)
    assert numbers.findall(with_frames) == numbers.findall(before)
    assert frame == same_frame


IN_LLDB = """
import lldb, os

def show(line):
    result = lldb.SBCommandReturnObject()
    lldb.debugger.GetCommandInterpreter().HandleCommand(line, result)
    print("BEGIN", result.GetOutput() or "", result.GetError() or "", "END", sep="\\n")

def wait(condition):
    while not condition():
        os.sched_yield()

def in_background(action):
    process = lldb.debugger.GetSelectedTarget().GetProcess()
    lldb.debugger.SetAsync(True)
    action(process)
    wait(lambda: not process.is_stopped)
    process.Stop()
    wait(lambda: process.is_stopped)
    lldb.debugger.SetAsync(False)

def step_out_to_added(process):
    thread = process.GetSelectedThread()
    added = next((frame.GetFrameID() for frame in thread if frame.IsArtificial()), 2)
    thread.SetSelectedFrame(added - 1)
    show("thread step-out")
"""
"""The process is hung: nothing that lets it run returns by itself."""


@pytest.mark.parametrize("name", lldbs.parameters())
def test_lldb(hung: Inferior, name: str, tmp_path: Path) -> None:
    """The stacks of three stops: as found, after it ran, after a step out of a frame that ours follows."""
    (tmp_path / "in_lldb.py").write_text(IN_LLDB)
    commands = ["bt all", "dispatch-frames on", "bt all", "dispatch-bt --native --json"]
    commands += ["in_background(lambda process: process.Continue())", "bt"]
    commands += ["in_background(in_lldb.step_out_to_added)", "bt", "dispatch-frames off", "bt all"]
    calls = [each if each.endswith(")") else f"show({each!r})" for each in commands]
    script = [IMPORT, f"command script import {tmp_path}/in_lldb.py"]
    script += [*(f"script in_lldb.{call}" for call in calls), "detach"]
    start = ["settings set plugin.jit-loader.gdb.enable off", f"process attach --pid {hung.pid}"]
    outcome = run(lldbs.batch(name, *start, *script))
    before, answer, with_frames, _, ran, step_out, last, _, after = stacks(outcome)
    (document,) = outcome.documents
    assert shown(before) == shown(after), outcome
    assert before.count("clone3") == with_frames.count("clone3") > 0
    assert "error" not in step_out
    if "this LLDB cannot show added frames" in answer:
        assert "see the same stack with: dispatch-bt --native" in answer
        assert "22" not in name
        return
    assert shown(with_frames) == shown(ran) == shown(last) == expected(document["threads"][0])
    assert "`meta_mm at meta_mm.py:" in with_frames
