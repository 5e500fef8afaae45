"""The table of commands: it lists what there is, and nothing else; and every failure becomes a message."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.entry_points import EntryPoint
from gdbext.errors import AddOnError
from gdbext.hosts.cli import launcher
from gdbext.live.host import LiveTool
from gdbext.tools import running, table
from gdbext.tools.info import InfoTool
from gdbext.tools.program import Program

PACKAGE = Path(table.__file__).parents[1]


@pytest.mark.parametrize("row", table.TABLE, ids=lambda row: row.name)
def test_each_row_has_a_tool_of_its_mode(row: table.ToolRow) -> None:
    tool = table.tool_of(row)
    assert isinstance(tool, Program if row.mode == "program" else Tool)
    assert isinstance(tool, LiveTool) == row.resumes
    assert row.name in table.help_text(row)


def test_entry_points_add_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refused one is named, with its reason, and costs the others nothing."""
    added, resuming = made_tool("dispatch-added", Mode.STOPPED), made_tool("dispatch-resuming", Mode.RESUMES)
    nameless = type("Nameless", (InfoTool,), {"name": None, "mode": "stopped"})
    made = SimpleNamespace(Added=added, Resuming=resuming, Nameless=nameless, Half=type("Half", (Tool,), {}))
    monkeypatch.setitem(sys.modules, "made_tools", made)
    places = {f"dispatch-{name.lower()}": name for name in ("Added", "Resuming", "Nameless", "Number", "Gone", "Half")}
    places |= {"quit": "Added", "dispatch-other": "Added"}
    made_by = ("ours 1.2", sys.path[0])
    points = [EntryPoint(table.GROUP, name, f"made_tools:{place}", *made_by) for name, place in places.items()]
    monkeypatch.setattr(table, "entry_points", lambda group: points if group == table.GROUP else ())
    found = table.find("dispatch-added")
    assert (found.mode, found.summary, table.tool_of(found).name) == ("stopped", "Show it.", "dispatch-added")
    assert [row.name for row in table.every_command()] == [*(row.name for row in table.commands()), "dispatch-added"]
    problems = table.AddedCommands().problems
    assert sorted(problems) == sorted(set(places) - {"dispatch-added"})
    assert all("ours 1.2" in error.what for error in problems.values())
    with pytest.raises(AddOnError, match="mode resumes"):
        table.find("dispatch-resuming")
    assert "dispatch-added       Show it." in launcher.usage()
    assert "dispatch-gone        cannot be used: " in launcher.usage()


def made_tool(name: str, mode: Mode) -> type[Tool]:
    return type("Made", (InfoTool,), {"summary": "Show it.", "name": name, "mode": mode})


def no_session() -> NoReturn:
    raise AssertionError("the arguments are checked before the target is opened")


def test_wrong_arguments_open_no_target_and_a_fault_of_ours_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = running.execute("dispatch-bt", ["--nonsense", "--json"], no_session)
    assert outcome.status == 2
    document = json.loads(outcome.output)
    assert (document["schema"], document["command"], document["target"]) == ("gdbext/1", "dispatch-bt", None)
    assert "--nonsense" in document["errors"][0]["what"]
    monkeypatch.delenv("GDBEXT_DEBUG", raising=False)
    outcome = running.execute("dispatch-bt", [], no_session)
    assert (outcome.status, outcome.output) == (1, "")
    assert "internal error: AssertionError" in outcome.error
    assert "GDBEXT_DEBUG=1" in outcome.error
