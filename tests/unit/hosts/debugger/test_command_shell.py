"""What is the same in all debuggers: sessions, commands, completion, the requests of dispatch-break."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdbext.errors import TargetError
from gdbext.hosts.debugger.command_shell import SessionCache, Shell
from gdbext.tools import table
from support.fakes.fake_debugger import FakeDebugger
from support.recorded.recordings import Replay

BREAK, INFO, BT, FRAMES = (
    table.find(name) for name in ("dispatch-break", "dispatch-info", "dispatch-bt", "dispatch-frames")
)


def run(shell: Shell, entry: table.ToolRow, *argv: str) -> dict[str, Any]:
    outcome = shell.execute(entry, [*argv, "--json"], False)
    assert outcome.status == 0, outcome.error
    document: dict[str, Any] = json.loads(outcome.output)
    return document


def test_a_session_lasts_until_the_process_runs() -> None:
    debugger = FakeDebugger()
    cache = SessionCache(debugger)
    first = cache.get()
    assert cache.get() is first
    debugger.change()
    assert debugger.targets[0].is_closed
    assert cache.get() is not first
    assert [target.is_closed for target in debugger.targets] == [True, False]


def test_who_asks_often_has_the_process_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SessionCache(FakeDebugger())
    first = cache.get()
    monkeypatch.setattr(type(first.target), "is_current", lambda _: False)
    assert cache.get(age=60) is first
    assert cache.get() is not first


def test_another_target_needs_no_event() -> None:
    debugger = FakeDebugger()
    cache = SessionCache(debugger)
    first = cache.get()
    debugger.which = 2
    assert cache.get() is not first
    assert debugger.targets[0].is_closed


def test_a_target_that_cannot_be_had_leaves_no_session() -> None:
    debugger = FakeDebugger(process=False)
    cache = SessionCache(debugger)
    with pytest.raises(TargetError, match="no process"):
        cache.get()
    debugger.process = True
    assert cache.get() is cache.get()


def test_closing_ends_listening() -> None:
    debugger = FakeDebugger()
    cache = SessionCache(debugger)
    cache.close()
    cache.get()
    assert debugger.is_listened_to
    cache.close()
    assert not debugger.is_listened_to
    assert debugger.targets[0].is_closed


def test_commands_share_the_session() -> None:
    debugger = FakeDebugger()
    shell = Shell(debugger)
    run(shell, INFO)
    run(shell, INFO)
    assert len(debugger.targets) == 1
    assert debugger.log == []  # nothing that could let the process run
    shell.close()
    assert not debugger.is_listened_to


def test_frames_are_added_to_the_debuggers_stacks_and_taken_back() -> None:
    debugger = FakeDebugger()
    shell = Shell(debugger)
    assert run(shell, FRAMES, "on")["debugger_frames"] == {"shown": True}
    assert debugger.source is not None
    assert debugger.source.of(1) == ()  # the target has no such thread
    assert len(debugger.targets) == 1  # the session that the commands use
    assert run(shell, FRAMES, "off")["debugger_frames"] == {"shown": False}
    assert debugger.source is None
    run(shell, FRAMES, "on")
    shell.close()
    assert debugger.source is None


def test_stacks_are_shown_whatever_becomes_of_the_added_frames() -> None:
    debugger = FakeDebugger(process=False)
    run(Shell(debugger), FRAMES, "on")
    assert debugger.source is not None
    assert debugger.source.of(1) == ()


def test_completion_of_options_and_fixed_words() -> None:
    shell = Shell(FakeDebugger())
    assert shell.completions(BT, [], "--th") == ["--thread"]
    assert shell.completions(BT, ["--thread"], "1") == ["1", "10"]
    assert shell.completions(BT, ["--thread", "1"], "") == table.parser_of(BT).option_names()
    assert shell.completions(FRAMES, [], "o") == ["off", "on"]
    assert shell.completions(FRAMES, ["--json"], "")[:3] == ["off", "on", "--help"]
    assert shell.completions(BREAK, ["--key", "CPU"], "re") == ["redispatch", "register", "return"]
    assert shell.completions(table.find("dispatch-values"), ["save", "mm", "--when"], "a") == ["after"]


def test_completion_of_files(tmp_path: Path) -> None:
    (tmp_path / "graph.dot").touch()
    (tmp_path / "graphs").mkdir()
    found = Shell(FakeDebugger()).completions(table.find("all-threads"), ["--dot"], f"{tmp_path}/gr")
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


def test_completion_where_the_target_does_not_say() -> None:
    shell = Shell(FakeDebugger(process=False))
    assert shell.completions(table.find("dispatch-op"), [], "m") == []


def test_a_breakpoint_before_there_is_a_process_is_pending() -> None:
    debugger = FakeDebugger(process=False)
    shell = Shell(debugger)
    document = run(shell, BREAK, "call", "mm")
    assert document["target"]["debugger"] == "fake"
    (request,) = document["breaks"]["requests"]
    assert request["breakpoints"][0]["pending"]
    assert request["breakpoints"][0]["place"] == debugger.setter.made[0].place == "at::getStepCallbacksUnlessEmpty"


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


def test_only_our_breakpoints_are_deleted() -> None:
    shell = Shell(FakeDebugger())
    run(shell, BREAK, "call", "mm")
    outcome = shell.execute(BREAK, ["--delete", "7"], False)
    assert outcome.status == 2
    assert "breakpoint 7 is not one of dispatch-break's" in outcome.error


def test_a_pending_breakpoint_outlives_the_program() -> None:
    debugger = FakeDebugger()
    shell = Shell(debugger)
    run(shell, BREAK, "call", "mm")
    debugger.setter.ended()
    assert len(debugger.setter.made) == 1
    assert debugger.setter.made[0].is_alive()


def test_a_pending_breakpoint_that_cannot_be_resolved_stops_and_says_why() -> None:
    debugger = FakeDebugger()
    run(Shell(debugger), BREAK, "call", "mm")
    reached = debugger.setter.made[0].hit
    assert reached is not None
    assert reached() is True
    assert debugger.shown == "dispatch-break: no PyTorch is loaded in this process\n"
