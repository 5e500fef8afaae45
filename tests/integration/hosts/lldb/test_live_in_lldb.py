"""dispatch-trace and dispatch-break through LLDB: the same output as through gdb."""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gdbext.engine.targets.live.proc_checks import thread_states
from support.installed import lldbs, machine
from support.installed.probing import PROBES
from support.programs import harness, procfs
from support.programs.dap_session import DapSession
from support.programs.debugger_terminal import DebuggerTerminal
from support.programs.harness import DISPATCH, Inferior, Start, run, wait_until
from support.programs.user_debuggers import IMPORT, goes_on

pytestmark = [pytest.mark.torch, pytest.mark.gdb]
EACH_LLDB = pytest.mark.parametrize("name", lldbs.parameters())

PROGRAM = """\
import os, torch
a = torch.ones(2, 2, requires_grad=True)
for _ in range(2): torch.mm(a, a)
os._exit(7)
"""
"""Ends without what Python does at its exit, which takes as long as the rest."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@EACH_LLDB
def test_the_same_trace(name: str, program: Path) -> None:
    words = ["dispatch-trace", "aten::mm.default", "--verbose", "--", sys.executable, program]
    through = run([DISPATCH, "--debugger", "lldb", *words], env={"LLDB": lldbs.executable(name)})
    by_gdb = run([DISPATCH, *words])
    assert through.status == by_gdb.status == 0, (through, by_gdb)
    lines = [re.sub(r", at=\[.*", "", each.stdout) for each in (through, by_gdb)]
    assert lines[0] == lines[1]
    assert "the process exited with status 7" in through.stdout


@EACH_LLDB
def test_breakpoints_in_a_users_lldb(name: str, program: Path) -> None:
    """Pending, then real, with a condition; gone when they are deleted. Those that nobody asked about do not stop."""
    broken = ("dispatch-break redispatch aten::mm.default --key CPU --why", "run", "dispatch-break --list")
    commands = (IMPORT, *broken, "continue", "dispatch-break --delete", "continue")
    outcome = run([*lldbs.batch(name, *commands), "--", sys.executable, program])
    text = outcome.stdout
    assert "Traceback" not in text + outcome.stderr, outcome
    assert "pending: set when torch is loaded and used" in text, outcome
    assert text.count("dispatch-break: aten::mm at redispatch") == 2
    assert "keyset DispatchKeySet(CPU" in text
    assert re.search(r"breakpoint [1-5] at 0x.*aten::mm redispatch.*, 1 hit\b", text), outcome
    assert "1 breakpoint deleted" in text
    assert "exited with status = 7" in text


COMMANDS = (
    "dispatch-trace --engine breakpoints --all --limit 3",
    "dispatch-values print aten::add.Tensor --limit 1",
    "dispatch-diagnose --samples 3 --interval 0.001",  # an interrupt before LLDB lets the process run
)
FORKS = "settings set target.process.follow-fork-mode"
REFUSED = (f"{FORKS} child", COMMANDS[0], f"{FORKS} parent")
REFUSED += ("target stop-hook add -G true -o version", COMMANDS[0], "target stop-hook delete 1")
MANY = """
import gc, json, os

def done(command):
    result = lldb.SBCommandReturnObject()
    lldb.debugger.GetCommandInterpreter().HandleCommand(command, result)
    return result

counts, failures = [], []
for number in range(13):
    result = done({commands!r}[number % 3])
    failures += [] if result.Succeeded() else [result.GetError()]
    if number in (3, 12):  # the same command
        gc.collect()
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
refused = [done(command).GetOutput() for command in {refused!r}]
lldb.debugger.HandleCommand("process handle --stop true --pass true SIGCHLD")
os.kill(lldb.debugger.GetSelectedTarget().process.id, 17)
result = done("dispatch-trace --engine breakpoints aten::mm")
json.dump([counts, failures, result.GetOutput(), refused], open({found!r}, "w"))
"""


@EACH_LLDB
def test_nothing_is_kept_and_signals_stop_as_the_user_says(name: str, small_calls: Inferior, tmp_path: Path) -> None:
    """Resuming commands in one LLDB: as many descriptors after thirteen as after four, and the program goes on."""
    found, script = tmp_path / "found.json", tmp_path / "many.py"
    script.write_text(MANY.format(commands=COMMANDS, refused=REFUSED, found=str(found)))
    typed = (f"script exec(open({str(script)!r}).read(), {{'lldb': lldb}})", "process detach")
    run(lldbs.batch(name, f"process attach -p {small_calls.pid}", IMPORT, *typed))
    (first, last), failures, signalled, refused = json.loads(found.read_text())
    assert not failures
    assert "the process got SIGCHLD" in signalled
    assert f"LLDB would detach from process {small_calls.pid} and follow its first child" in refused[1]
    assert "a stop hook of yours resumes the process" in refused[4]
    assert last <= first + 80, "nine commands leave less than two sessions would: a descriptor per library"
    goes_on(small_calls)


@pytest.mark.parametrize("adapter", lldbs.adapters())
def test_the_debug_adapter_protocol(adapter: str) -> None:
    if not adapter:
        machine.lacking("no lldb-dap on this machine (scripts/test unpacks some)")
    load = ["settings set target.preload-symbols false", IMPORT]
    with harness.started("small_calls") as job, closing(DapSession([adapter])) as editor:
        capabilities = editor.attach(job.pid, stopOnEntry=True, initCommands=load)
        settings = editor.evaluate("`settings show")
        assert "not in the dispatcher" in editor.evaluate("`dispatch-bt")
        trace = editor.evaluate("`dispatch-trace --engine breakpoints --all --limit 3")
        assert "3 dispatches traced; ended: --limit 3" in trace
        assert "samples over" in editor.evaluate("`dispatch-diagnose --samples 3 --interval 0.001")
        if not PROBES.args[0]:
            values = editor.evaluate("`dispatch-values print aten::add.Tensor --limit 1 --engine probes")
            assert "1 call seen; ended: --limit 1" in values
        thread = editor.request("threads")["body"]["threads"][0]["id"]
        stack = editor.request("stackTrace", {"threadId": thread, "startFrame": 0, "levels": 3})
        assert stack["body"]["stackFrames"]
        assert editor.evaluate("`settings show") == settings
        following = editor.evaluate("`breakpoint set --name nowhere_at_all")
        assert "Breakpoint 2: no locations" in following, "the trace took one number, and nothing else took any"
        if capabilities.get("supportsCancelRequest"):
            number = editor.begin("`dispatch-trace aten::mm")
            goes_on(job)
            editor.request("cancel", {"requestId": number})
            editor.response(number)
            assert "stopped" in editor.evaluate("`process status"), "it stands still"
        assert not editor.events("exited", "terminated")
        editor.request("disconnect", {"terminateDebuggee": False})
        editor.close()
        assert editor.output().count("[call] op=[aten::add.Tensor], key=[AutogradCPU]") == 3
        goes_on(job)


@EACH_LLDB
def test_control_c_in_a_users_lldb(inferior: Start, name: str) -> None:
    hang = inferior("meta-mm")
    start = [lldbs.executable(name), "--no-lldbinit", "--no-use-colors", *lldbs.reading_little()]
    with closing(DebuggerTerminal(start, "(lldb) ")) as terminal:
        terminal.until(terminal.prompt)
        terminal.answer(f"process attach --pid {hang.pid}", "Architecture set to")
        terminal.answer(IMPORT)
        terminal.answer("dispatch-bt", "op=[aten::linear]")
        for seconds in (0.1, 0.5):
            before = procfs.processor_time(terminal.process.pid)
            terminal.type("dispatch-op --all\n")
            wait_until(lambda: procfs.processor_time(terminal.process.pid) > before + seconds, "operators are read")  # noqa: B023
            terminal.type("\x03")
            seen = terminal.until("the process was not changed")
            assert "error: interrupted" in seen
            assert "Traceback" not in seen
            terminal.answer("dispatch-bt", "op=[aten::linear]")
        terminal.type("dispatch-diagnose --samples 2 --interval 60\n")
        wait_until(lambda: thread_states(hang.pid)[hang.pid] != "t", "the process runs between the looks")
        terminal.type("\x03")
        terminal.until("the process was not changed")
        terminal.type("dispatch-trace aten::mm\n")
        wait_until(lambda: thread_states(hang.pid)[hang.pid] != "t", "the process runs")
        terminal.type("\x03")
        assert "0 dispatches traced; ended: interrupted" in terminal.until("interrupted")
        terminal.answer("dispatch-bt", "op=[aten::linear]")  # it stands again
        terminal.answer("detach", "detached")
        terminal.type("quit\n")
        wait_until(lambda: terminal.process.poll() is not None, "LLDB ends")
