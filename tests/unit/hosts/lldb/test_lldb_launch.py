"""Which LLDB is started, and what is said of one that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdbext.hosts.debugger import base_debugger
from gdbext.hosts.debugger.base_debugger import DebuggerLaunch


@pytest.fixture
def launch() -> DebuggerLaunch:
    return base_debugger.launch("lldb")


def programs(folder: Path, *names: str) -> str:
    folder.mkdir()
    for name in names:
        (folder / name).touch(0o755)
    return str(folder)


def test_the_newest_of_those_with_a_version(
    launch: DebuggerLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLDB", raising=False)
    older = programs(tmp_path / "a", "lldb-9", "lldb-19", "lldb-server-22", "lldb-dap-22")
    newer = programs(tmp_path / "b", "lldb-20", "lldb-16")
    monkeypatch.setenv("PATH", f"{older}:{tmp_path}/none:{newer}")
    assert launch.find() == f"{newer}/lldb-20"


def test_the_plain_name_comes_first(launch: DebuggerLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLDB", raising=False)
    monkeypatch.setenv("PATH", programs(tmp_path / "a", "lldb-19", "lldb"))
    assert launch.find() == f"{tmp_path}/a/lldb"


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("error: there is no embedded script interpreter in this mode.\n", ""),
        (
            "error: Embedded script interpreter unavailable. LLDB was built without scripting language support.\n",
            "this lldb has no Python inside",
        ),
        (
            "Traceback (most recent call last):\nModuleNotFoundError: No module named 'lldb.embedded_interpreter'\n",
            "cannot load LLDB's own module",
        ),
        (
            "ImportError: cannot import name '_lldb' from partially initialized module 'lldb'\n",
            "cannot load LLDB's own module",
        ),
        ("ModuleNotFoundError: No module named 'pygments'\n", ""),
    ],
)
def test_what_its_output_says_of_itself(launch: DebuggerLaunch, output: str, what: str) -> None:
    failure = launch.known_failure(output)
    if not what:
        assert failure is None
        return
    assert failure is not None
    assert what in failure.what
    assert "--debugger none" in failure.help
    assert "apt-get install" in failure.help


def test_what_it_repeats_is_not_what_it_says(launch: DebuggerLaunch) -> None:
    assert launch.relevant_output("(lldb) script import sys\n\nerror: attach failed\n") == "error: attach failed"
