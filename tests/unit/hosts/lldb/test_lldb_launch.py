"""Which LLDB is started, and what is said of one that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdbext.hosts.debugger import base_debugger
from gdbext.hosts.debugger.base_debugger import DebuggerLaunch


@pytest.fixture
def launch() -> DebuggerLaunch:
    return base_debugger.launch("lldb")


def test_the_plain_name_comes_first_and_then_the_newest(
    launch: DebuggerLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLDB", raising=False)
    in_a = ("a/lldb-9", "a/lldb-19", "a/lldb-server-22", "a/lldb-dap-22")
    for name in (*in_a, "b/lldb-20", "b/lldb-16", "c/lldb-16", "c/lldb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/none:{tmp_path}/b")
    assert launch.find() == f"{tmp_path}/b/lldb-20"
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/c")
    assert launch.find() == f"{tmp_path}/c/lldb"


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("error: there is no embedded script interpreter in this mode.\n", ""),
        ("error: Embedded script interpreter unavailable.\n", "this lldb has no Python inside"),
        ("ModuleNotFoundError: No module named 'lldb.embedded_interpreter'\n", "cannot load LLDB's own module"),
        ("ImportError: cannot import name '_lldb' from partially\n", "cannot load LLDB's own module"),
        ("ModuleNotFoundError: No module named 'pygments'\n", ""),
    ],
)
def test_what_its_output_says_of_itself(launch: DebuggerLaunch, output: str, what: str) -> None:
    failure = launch.known_failure(output)
    assert (failure is None) == (not what)
    if failure is not None:
        assert what in failure.what
        assert "--debugger none" in failure.help
        assert "apt-get install" in failure.help


def test_what_it_repeats_is_not_what_it_says(launch: DebuggerLaunch) -> None:
    assert launch.relevant_output("(lldb) script import sys\n\nerror: attach failed\n") == "error: attach failed"
