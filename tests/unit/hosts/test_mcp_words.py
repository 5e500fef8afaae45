"""The words that an agent gives to ``replay`` are a command's: none of the launcher's options passes, wherever it
stands and however it is written."""

from __future__ import annotations

import pytest

from gdbext.hosts import mcp_server
from gdbext.hosts.cli import options
from gdbext.hosts.cli.options import launcher_words
from gdbext.tools import table

COMMAND = "dispatch-diagnose"
OPTIONS = [*options._VALUED, *options._FLAGS, *options._ALONE, "--"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    found: list[list[str]] = []
    monkeypatch.setattr(mcp_server, "_run", lambda words: found.append(words) or "")
    return found


@pytest.mark.parametrize("option", OPTIONS)
def test_no_option_of_the_launcher_passes(started: list[list[str]], option: str) -> None:
    tools = mcp_server.McpTools(False)
    for words in (f"{COMMAND} {option} 9", f"{COMMAND} --why {option}=9", f"{option} 9 {COMMAND}"):
        assert tools.replay("x", words)
    for program in (row.name for row in table.TABLE if row.mode == "program"):
        assert "must be a command" in tools.replay("x", f"{program} --help")
    assert not started


def test_a_command_passes(started: list[list[str]]) -> None:
    mcp_server.McpTools(False).replay("x", "dispatch-op aten::mm --key CPU --json")
    assert started == [["-r", "x", "dispatch-op", "aten::mm", "--key", "CPU", "--json"]]
    assert launcher_words(["dispatch-bt", "--thread", "3"]) == []
