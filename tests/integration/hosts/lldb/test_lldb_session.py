"""The commands inside a user's own LLDB: the same as everywhere, and its names, selection and process stay as they
were."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from gdbext.tools import table
from support.installed import lldbs
from support.programs.harness import Outcome, run
from support.programs.plain_program import Plain
from support.programs.user_debuggers import IMPORT

pytestmark = [pytest.mark.compiler, pytest.mark.parametrize("name", lldbs.parameters())]


def lldb(name: str, *commands: str, pid: int | None = None) -> Outcome:
    """LLDB with these commands, each of which runs whatever becomes of the one before: given as such, they would end
    with the first that fails."""
    words = [word for command in commands for word in ("-o", f"script lldb.debugger.HandleCommand({command!r})")]
    what = [] if pid is None else ["-p", str(pid)]
    outcome = run([lldbs.executable(name), "--no-lldbinit", "-b", *what, *words])
    assert "Traceback" not in outcome.stdout + outcome.stderr, outcome
    return outcome


def release(name: str) -> int:
    return int(name.rpartition("-")[2]) if "-" in name else 0


def shown(outcome: Outcome, mark: str) -> list[str]:
    return [line for line in outcome.stdout.splitlines() if line.startswith(f"{mark} ")]


def test_reports_and_selection(name: str, plain: Plain) -> None:
    show = (
        "script t = lldb.debugger.GetSelectedTarget().process.GetSelectedThread(); "
        "print('AT', t.GetIndexID(), t.GetSelectedFrame().GetFrameID())"
    )
    reports = ["dispatch-bt --json", "dispatch bt --json", "dispatch-bt --all --native --json", "all-threads --json"]
    outcome = lldb(name, IMPORT, "thread select 3", "frame select 1", show, *reports, show, "detach", pid=plain.pid)
    selected, by_word, *everyone = outcome.documents
    assert [each["number"] for each in selected["threads"]] == [3]
    assert selected == {**by_word, "target": selected["target"]}
    tids = [sorted(each["tid"] for each in document["threads"]) for document in (plain.truth, *everyone)]
    assert tids == tids[:1] * 3
    assert {each["target"]["debugger"] for each in outcome.documents} == {"lldb"}
    assert shown(outcome, "AT") == ["AT 3 1"] * 2


WRITES = """
import lldb, sys
process = lldb.debugger.GetSelectedTarget().process
session = sys.modules["gdbext"].commands_in_lldb._shell._sessions.get
first = session()
thread = first.target.memory.selected_thread()
before = dict(thread.registers())
word = first.memory.u64(before["rsp"])
print("SAME", session() is first)
error = lldb.SBError()
process.WriteMemory(before["rsp"], (word ^ 1).to_bytes(8, "little"), error)
second = session()
print("MEMORY", second is not first, second.memory.u64(before["rsp"]) == word ^ 1, error.Success())
process.WriteMemory(before["rsp"], word.to_bytes(8, "little"), error)
frame = process.GetSelectedThread().GetFrameAtIndex(0)
third = session()
third.target.memory.selected_thread().registers()
frame.FindRegister("rbx").SetValueFromCString(str(before["rbx"] ^ 1), error)
fourth = session()
print("REGISTER", fourth is not third, fourth.target.memory.selected_thread().registers()["rbx"] == before["rbx"] ^ 1)
process.GetSelectedThread().GetFrameAtIndex(0).FindRegister("rbx").SetValueFromCString(str(before["rbx"]), error)
last = session()
process.SetSelectedThreadByIndexID(2)
print("SELECTED", session() is last, last.target.memory.selected_thread().number)
"""


def test_a_session_lasts_until_something_is_written(name: str, plain: Plain, tmp_path: Path) -> None:
    """LLDB tells nobody; and what is selected is asked anew."""
    (tmp_path / "writes.py").write_text(WRITES)
    run_it = f"script exec(open('{tmp_path}/writes.py').read(), {{}})"
    outcome = lldb(name, IMPORT, "dispatch-bt --json", run_it, "thread select 1", "detach", pid=plain.pid)
    assert shown(outcome, "SAME") == ["SAME True"], outcome
    if "16" not in name:  # it goes on giving what it had read of a range that overlaps the written one
        assert shown(outcome, "MEMORY") == ["MEMORY True True True"]
    assert shown(outcome, "REGISTER") == ["REGISTER True True"]
    assert shown(outcome, "SELECTED") == ["SELECTED True 2"]


def test_it_is_imported_twice_and_leaves_nothing_behind(name: str) -> None:
    names = "script import sys; print('NAMES', sorted(globals()), [p for p in sys.path if 'gdbext' in p])"
    outcome = lldb(name, names, IMPORT, names, IMPORT, names)
    before, once, twice = shown(outcome, "NAMES")
    assert once == twice
    assert once == before.replace("'lldb',", "'lldb', 'lldb_init',", 1)


def test_errors_end_nothing(name: str, plain: Plain) -> None:
    wrong = ("dispatch-bt --bogus", "dispatch-bt 'open", "dispatch-bt --thread 99999", "dispatch-keyset NoSuchKey")
    commands = (f"process attach --pid {plain.pid}", *wrong, "dispatch-bt --json", "detach")
    outcome = lldb(name, IMPORT, "dispatch-diagnose", "dispatch-bt --json", *commands)
    assert "process attach --pid PID" in outcome.stderr
    assert outcome.stderr.count("error: ") >= len(wrong), outcome
    by_lldb = outcome.stderr.count("unknown or ambiguous option")  # where it knows the options itself
    assert by_lldb == (release(name) >= 19), outcome
    assert outcome.stderr.count("  try: ") >= len(wrong) - by_lldb, outcome
    without, _ = outcome.documents
    assert without["errors"][0]["what"] == "lldb has no process and no core"


def test_one_that_is_too_old_says_so(name: str) -> None:
    old = "script lldb.SBDebugger.GetVersionString = staticmethod(lambda: 'lldb version 15.0.7')"
    outcome = lldb(name, old, IMPORT)
    assert "gdbext: this is LLDB 15; 16 or later is needed" in outcome.stderr, outcome
    assert "  try: apt-get install" in outcome.stderr


def test_help(name: str) -> None:
    outcome = lldb(name, IMPORT, "help", "help dispatch-lookup")
    text = " ".join(outcome.stdout.split())
    assert all(row.name in text for row in table.commands())
    assert all(option in text for option in table.parser_of(table.find("dispatch-lookup")).option_names())


COMPLETE = """
import lldb
def complete(line):
    found = lldb.SBStringList()
    lldb.debugger.GetCommandInterpreter().HandleCompletion(line, len(line), 0, -1, found)
    print("BECOMES", line, "->", *(found.GetStringAtIndex(at) for at in range(1, found.GetSize())))
"""


def test_completion(name: str, tmp_path: Path) -> None:
    """Names by every LLDB, options from 19 on, arguments from 20 on."""
    (tmp_path / "graph.dot").touch()
    (tmp_path / "lines.py").write_text(COMPLETE)
    dot, values, frames = f"all-threads --dot {tmp_path}/gr", "dispatch-values --when b", "dispatch frames --json o"
    names = ("dispatch-lo", "dispatch lo")
    lines = (*names, "dispatch-bt --th", dot, values, frames)
    scripts = [f"script __import__('lines').complete({line!r})" for line in lines]
    outcome = lldb(name, IMPORT, f"command script import {tmp_path}/lines.py", *scripts)
    becomes = [line.removeprefix("BECOMES ").partition(" ->") for line in shown(outcome, "BECOMES")]
    found = {line: set(words.split()) for line, _, words in becomes}
    assert [found[each] for each in names] == [{"dispatch-lookup"}, {"lookup"}]
    if release(name) >= 19:
        assert found["dispatch-bt --th"] == {"--thread"}
        assert found[values] == {"before", "both"}
        assert found[dot] == {f"{tmp_path}/graph.dot"}
    if release(name) >= 20:
        assert found[frames] == {"on", "off"}


def test_lines_are_understood_as_elsewhere(name: str) -> None:
    """Also where LLDB takes them apart: quotes, values with a dash, arguments that look like options."""
    lines = ["dispatch-op --key=-x 'a b' --json", "dispatch-keyset --json -- -1", "dispatch-break --json --delete 3 4"]
    instead = "lambda name, argv, *_: r.Outcome(0, f'ARGV {argv}')"
    outcome = lldb(name, IMPORT, f"script import gdbext.tools.running as r; r.execute = {instead}", *lines)
    given = [ast.literal_eval(line.removeprefix("ARGV ")) for line in shown(outcome, "ARGV")]
    assert len(given) == len(lines), outcome
    for line, argv in zip(lines, given):
        command, *words = shlex.split(line)
        parser = table.parser_of(table.find(command))
        assert parser.parse(argv) == parser.parse(words)
