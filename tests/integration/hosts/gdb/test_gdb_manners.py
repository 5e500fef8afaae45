"""The commands inside a user's own gdb: they leave its settings, names, selection and process as they were."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.programs import procfs
from support.programs.debugger_terminal import DebuggerTerminal
from support.programs.harness import Inferior, Pool, wait_until
from support.programs.user_debuggers import SOURCE, gdb

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

QUIET = ("-iex", "set auto-solib-add off", "-iex", "set debuginfod enabled off", "-iex", "set pagination off")
READING = (
    "dispatch-bt --all --native",
    "all-threads",
    "dispatch-diagnose",
    "dispatch-op aten::mm",
    "dispatch-tls --all",
)
COMMANDS = (*READING, "dispatch-bt --bogus", "dispatch-op")
"""The last two are wrong."""

Start = Callable[..., Inferior]


def saved(expression: str, path: Path) -> str:
    """A gdb command that writes a Python expression's value as JSON, and leaves no name behind."""
    return f"python __import__('pathlib').Path({str(path)!r}).write_text(__import__('json').dumps({expression}))"


def test_no_name_no_setting_and_no_selection_changes(inferior: Start, tmp_path: Path) -> None:
    hang = inferior("meta-mm")
    names = "sorted(globals())"
    settings = "gdb.execute('show', False, True).splitlines()"
    selection = "[gdb.selected_thread().num, gdb.selected_frame().level(), gdb.selected_frame().pc()]"
    before = [saved(names, tmp_path / "names"), saved(settings, tmp_path / "settings")]
    before += [SOURCE, SOURCE, "thread 2", "frame 1", saved(selection, tmp_path / "selection")]
    after = [saved(names, tmp_path / "names after")]
    for number, command in enumerate(COMMANDS):
        after += [command, saved(selection, tmp_path / f"selection {number}")]
    after += [saved(settings, tmp_path / "settings after"), saved(names, tmp_path / "names at the end"), "detach"]
    gdb(*before, *after, pid=hang.pid, options=QUIET)
    read = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert read["names"] == read["names after"] == read["names at the end"]
    assert len(read["settings"]) > 300
    changed = set(read["settings"]) ^ set(read["settings after"])
    assert not {line for line in changed if not line.startswith(("$_gthread", "$_thread"))}  # we chose another thread
    for number, command in enumerate(COMMANDS):
        assert read[f"selection {number}"] == read["selection"], command


@pytest.fixture
def strange(inferior_pool: Pool) -> Iterator[Inferior]:
    found = inferior_pool.get("strange-names", "doomed")
    yield found
    inferior_pool.discard(found)


def test_threads_that_run_cost_themselves(strange: Inferior) -> None:
    """Non-stop: only the thread that gdb stopped can be read, and the report says so of the other. (Detached at once,
    gdb 13 leaves the process stopped in this mode.)"""
    options = (*QUIET, "-iex", "set non-stop on")
    text = gdb(SOURCE, "dispatch-bt --all", "detach", options=options, pid=strange.pid).stdout
    assert "stand_still" in text
    assert f"thread {strange.tid('nameless')} is running" in text


def test_the_process_is_killed_while_gdb_holds_it(strange: Inferior) -> None:
    """What was read at this stop stays known; whatever was not says that the process has ended."""
    kill = f"shell kill -9 {strange.pid}; until grep -q State:.Z /proc/{strange.pid}/status; do :; done"
    outcome = gdb(SOURCE, "dispatch-bt", kill, "dispatch-bt", "dispatch-info", options=QUIET, pid=strange.pid)
    assert re.search(r"process \d+ has ended", outcome.stderr), outcome


def test_control_c_in_a_users_gdb(inferior: Start) -> None:
    """The command ends, gdb and the commands stay usable, and the process goes on after detach."""
    hang = inferior("meta-mm")
    options = ("-iex", "set style enabled off", "-iex", "set confirm off")
    with closing(DebuggerTerminal(["gdb", "-nx", "-q", *QUIET, *options], "(gdb) ")) as terminal:
        terminal.until(terminal.prompt)
        terminal.answer(SOURCE)
        terminal.answer(f"attach {hang.pid}")
        for seconds in (0.05, 0.1, 0.5):
            before = procfs.processor_time(terminal.process.pid)
            terminal.type("dispatch-op --all --json\n")
            wait_until(lambda: procfs.processor_time(terminal.process.pid) > before + seconds, "operators are read")  # noqa: B023
            terminal.type("\x03")
            seen = terminal.until(terminal.prompt)
            assert re.search("interrupted|Quit", seen), seen[-2000:]
            assert "Traceback" not in seen
            assert "op=[aten::mm], key=[Meta]" in terminal.answer("dispatch-bt")
        terminal.answer("detach")
        terminal.type("quit\n")
        wait_until(lambda: terminal.process.poll() is not None, "gdb ends")
