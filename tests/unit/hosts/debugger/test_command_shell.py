"""What is the same in all debuggers: sessions, commands, completion, the requests of dispatch-break."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.errors import TargetError
from gdbext.hosts.debugger import frame_source
from gdbext.hosts.debugger.command_shell import SessionCache, Shell
from gdbext.hosts.debugger.frame_source import SummarySource
from gdbext.tools import table
from gdbext.tools.tensor.cpp_object import CppObject, TypeSummary
from support.fakes.fake_debugger import FakeDebugger
from support.recorded.recordings import Replay

BREAK, INFO, BT, FRAMES = map(table.find, ("dispatch-break", "dispatch-info", "dispatch-bt", "dispatch-frames"))


def run(shell: Shell, entry: table.ToolRow, *argv: str) -> dict[str, Any]:
    outcome = shell.execute(entry, [*argv, "--json"], False)
    assert outcome.status == 0, outcome.error
    document: dict[str, Any] = json.loads(outcome.output)
    return document


def test_a_session_lasts_until_the_process_runs_or_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    debugger = FakeDebugger()
    cache = SessionCache(debugger)
    first = cache.get()
    assert cache.get() is first
    debugger.which = 2
    second = cache.get()
    assert second is not first
    debugger.which = 3
    third = cache.get()
    assert third is not second
    assert [target.is_closed for target in debugger.targets] == [True, True, False]
    monkeypatch.setattr(type(third.target), "is_current", lambda _: False)
    assert cache.get(max_age=60) is third, "who asks often has the process compared once"
    assert cache.get() is not third
    cache.forget()
    assert all(target.is_closed for target in debugger.targets)


def test_a_target_that_cannot_be_had_leaves_no_session() -> None:
    debugger = FakeDebugger(process=False)
    cache = SessionCache(debugger)
    cache.forget()
    with pytest.raises(TargetError, match="no process"):
        cache.get()
    debugger.process = True
    assert cache.get() is cache.get()


def test_commands_share_the_session() -> None:
    debugger = FakeDebugger()
    shell = Shell(debugger)
    for _ in range(2):
        run(shell, INFO)
    assert len(debugger.targets) == 1
    assert debugger.log == []  # nothing that could let the process run
    shell.close()
    assert debugger.is_closed


def test_frames_are_added_to_the_debuggers_stacks_and_taken_back() -> None:
    debugger = FakeDebugger()
    shell = Shell(debugger)
    assert run(shell, FRAMES, "on")["debugger_frames"] == {"shown": True}
    assert debugger.source.frames_of(1) == ()  # the target has no such thread
    assert len(debugger.targets) == 1  # the session that the commands use
    assert run(shell, FRAMES, "off")["debugger_frames"] == {"shown": False}
    assert debugger.source is None
    shell.close()
    without = FakeDebugger(process=False)
    run(Shell(without), FRAMES, "on")
    assert without.source.frames_of(1) == ()  # stacks are shown whatever becomes of the added frames


def test_completion_of_options_fixed_words_and_files(tmp_path: Path) -> None:
    shell = Shell(FakeDebugger(process=False))
    assert shell.completions(BT, [], "--th") == ["--thread"]
    assert shell.completions(BT, ["--thread", "1"], "") == table.parser_of(BT).option_names()
    assert shell.completions(FRAMES, [], "o") == ["off", "on"]
    assert shell.completions(FRAMES, ["--json"], "")[:3] == ["off", "on", "--help"]
    assert shell.completions(BREAK, ["--key", "CPU"], "re") == ["redispatch", "register", "return"]
    assert shell.completions(table.find("dispatch-values"), ["save", "mm", "--when"], "a") == ["after"]
    assert shell.completions(table.find("dispatch-op"), [], "m") == []  # there is no target that says
    assert Shell(FakeDebugger()).completions(BT, ["--thread"], "1") == ["1", "10"]
    (tmp_path / "graph.dot").touch()
    (tmp_path / "graphs").mkdir()
    found = shell.completions(table.find("all-threads"), ["--dot"], f"{tmp_path}/gr")
    assert found == [f"{tmp_path}/graph.dot", f"{tmp_path}/graphs/"]


def test_completion_of_operators_and_keys(replay: Callable[[str], Replay]) -> None:
    debugger = FakeDebugger()
    debugger.target = lambda: replay("meta-mm").target  # type: ignore[method-assign]
    shell = Shell(debugger)
    op, lookup, keyset = (table.find(name) for name in ("dispatch-op", "dispatch-lookup", "dispatch-keyset"))
    assert {"mm", "mv"} <= set(shell.completions(op, [], "m"))
    assert shell.completions(op, [], "aten::mm") == ["aten::mm", "aten::mm.dtype", "aten::mm.dtype_out", "aten::mm.out"]
    assert shell.completions(op, [], "mm.o") == ["mm.out"]
    assert shell.completions(op, [], "aten")[0].startswith("aten::")  # all of the namespace
    assert shell.completions(BREAK, ["call", "add"], "baddb") == ["baddbmm", "baddbmm_"]
    assert shell.completions(lookup, ["mm"], "CPU,AutogradC") == ["CPU,AutogradCPU", "CPU,AutogradCUDA"]
    assert "Meta" in shell.completions(keyset, [], "Me")
    assert shell.completions(op, ["mm", "--key"], "AutogradMet") == ["AutogradMeta"]


def test_a_breakpoint_before_there_is_a_process_is_pending() -> None:
    debugger = FakeDebugger(process=False)
    shell = Shell(debugger)
    document = run(shell, BREAK, "call", "mm")
    assert document["target"]["debugger"] == "fake"
    (request,) = document["breaks"]["requests"]
    (made,) = debugger.setter.made
    assert request["breakpoints"][0]["pending"]
    assert request["breakpoints"][0]["place"] == made.place == "at::getStepCallbacksUnlessEmpty"
    debugger.setter.ended()
    assert debugger.setter.made == [made], "it outlives the program"
    assert made.is_alive()


def test_breakpoints_are_listed_until_they_are_deleted() -> None:
    debugger = FakeDebugger()
    shell = Shell(debugger)
    for operator in ("mm", "add"):
        run(shell, BREAK, "call", operator)
    assert [each["op"] for each in run(shell, BREAK, "--list")["breaks"]["requests"]] == [["mm"], ["add"]]
    assert run(shell, BREAK, "--delete", "1")["breaks"]["deleted"] == 1
    debugger.setter.made[1].delete()  # by the user
    assert run(shell, BREAK, "--list")["breaks"]["requests"] == []
    assert debugger.log.count("breakpoint setter") == 1
    outcome = shell.execute(BREAK, ["--delete", "7"], False)
    assert outcome.status == 2
    assert "breakpoint 7 is not one of dispatch-break's" in outcome.error


def test_a_pending_breakpoint_that_cannot_be_resolved_stops_and_says_why() -> None:
    debugger = FakeDebugger()
    run(Shell(debugger), BREAK, "call", "mm")
    reached = debugger.setter.made[0].hit
    assert reached() is True
    assert debugger.shown == "dispatch-break: no PyTorch is loaded in this process\n"


DEVICE = CppObject("c10::Device", 0x1000)


def test_an_object_is_read_once_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[CppObject] = []
    reader = SimpleNamespace(of=lambda each: (read.append(each), TypeSummary(str(len(read))))[1])
    monkeypatch.setattr(frame_source, "TypeSummaries", lambda _: reader)
    sessions: list[Any] = [object()]
    source = SummarySource(lambda: sessions[-1])
    assert [source.summary_of(each) for each in (DEVICE, DEVICE)] == [TypeSummary("1")] * 2
    assert source.summary_of(DEVICE._replace(address=0x2000)) == TypeSummary("2")
    sessions.append(object())
    assert source.summary_of(DEVICE) == TypeSummary("3")

    def no_session() -> Any:
        raise TargetError("no process")

    assert SummarySource(no_session).summary_of(DEVICE) is None
    assert len(read) == 3
