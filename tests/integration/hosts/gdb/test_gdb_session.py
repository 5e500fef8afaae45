"""Inside gdb: sourcing leaves no trace, and commands change neither the selection nor a setting."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.programs import plain_program
from support.programs.harness import PATIENCE, ROOT, Outcome, run
from support.programs.plain_program import Plain

pytestmark = [pytest.mark.gdb, pytest.mark.compiler]

INIT = ROOT / "gdbext" / "init.py"
QUIET = ["-iex", "set debuginfod enabled off", "-iex", "set width 0"]


def gdb(*commands: str, pid: int | None = None, of: Sequence[str | Path] = (), **options: Any) -> Outcome:
    """gdb with these commands, on a process, or on a program with arguments."""
    what = ["--args", *of] if pid is None else ["-p", str(pid)]
    words = [word for command in commands for word in ("-ex", command)]
    return run(["gdb", "-nx", "-q", "-batch", *QUIET, *words, *(what if pid or of else ())], **options)


def lines(outcome: Outcome, mark: str) -> list[str]:
    found = [line[len(mark) + 1 :] for line in outcome.stdout.splitlines() if line.startswith(mark + " ")]
    assert found, outcome
    return found


def test_sourcing_leaves_nothing_behind_and_imports_little() -> None:
    shown = "sorted(globals()), __doc__, sys.path, sys.dont_write_bytecode, hash(gdb.execute('show', False, True))"
    state = f"python import sys; print('STATE', {shown})"
    modules = "python print('MODULES', 'gdbext.diagnosis.session' in sys.modules)"
    outcome = gdb(state, f"source {INIT}", state, f"source {INIT}", state, modules)
    before, once, twice = lines(outcome, "STATE")
    assert before == once == twice
    assert lines(outcome, "MODULES") == ["False"]


def test_sourcing_again_at_a_prompt(program: Path) -> None:
    """Prompts finish the help, and take printers back from object files without debug information."""
    source, count = f"source {INIT}", "python print('COUNT', sum(len(each.pretty_printers) for each in gdb.objfiles()))"
    typed = "\n".join((source, count, "print 1", count, source, count, "help dispatch-bt", "print 1", count, ""))
    command = ["gdb", "-nx", "-q", *QUIET, str(program)]
    outcome = subprocess.run(command, input=typed, text=True, capture_output=True, timeout=PATIENCE)
    assert "Error" not in outcome.stderr
    assert [line.split()[-1] for line in outcome.stdout.splitlines() if "COUNT" in line] == ["1", "0", "1", "0"]
    assert "--native" in outcome.stdout


def test_sourcing_again_takes_a_changed_version(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "gdbext", tmp_path / "gdbext", ignore=shutil.ignore_patterns("data"))
    registry = tmp_path / "gdbext" / "tools" / "table.py"
    change = f"""python
import pathlib, re
file = pathlib.Path({str(registry)!r})
file.write_text(file.read_text().replace("Show the dispatcher's path", "A changed summary"))
end"""
    script = tmp_path / "script.gdb"
    init = tmp_path / "gdbext" / "init.py"
    script.write_text(f"source {init}\n{change}\nsource {init}\nhelp dispatch-bt\n")
    assert "A changed summary" in run(["gdb", "-nx", "-q", "-batch", "-x", script]).stdout


def test_the_selected_thread_and_frame_are_reported_and_stay_selected(plain: Plain) -> None:
    show = "python print('AT', gdb.selected_thread().num, gdb.selected_frame().level(), gdb.selected_frame().pc())"
    outer_reports = ["dispatch-bt --all --native --json", "dispatch-bt --json"]
    outcome = gdb(
        *(f"source {INIT}", f"attach {plain.pid}", "thread 3", "frame 1", show, *outer_reports, show),
        *("frame 0", show, "dispatch-bt --all", show, "thread 2", "dispatch-bt --json"),
    )
    outer, outer_after, inner, inner_after = lines(outcome, "AT")
    assert outer.startswith("3 1 ")
    assert outer == outer_after
    assert inner.startswith("3 0 ")
    assert inner == inner_after
    assert [document["threads"][0]["number"] for document in outcome.documents[1:]] == [3, 2]
    assert {document["target"]["debugger"] for document in outcome.documents} == {"gdb"}


def test_registers_are_right_whatever_is_selected(plain: Plain) -> None:
    code = (
        f"python import sys; sys.path.append({str(ROOT)!r}); "
        "from gdbext.hosts.gdb.gdb_batch import current_target; "
        "threads = current_target().threads(); "
        "print('REGS', sorted((t.tid, t.registers()['rbx'], t.registers()['fs_base']) for t in threads))"
    )
    inner, outer = lines(gdb("thread 2", code, "thread 3", "frame 1", code, pid=plain.pid), "REGS")
    magic = plain.truth["magic"]
    wanted = sorted((t["tid"], magic + 16 * i, t["tls"]) for i, t in enumerate(plain.truth["threads"]))
    assert inner == outer == str(wanted)


def test_what_was_read_is_forgotten_when_the_process_runs(program: Path) -> None:
    """After a stop elsewhere the same command tells the new state."""
    words = ("starti", "dispatch-bt --json", "continue", "dispatch-bt --json")
    first, second = gdb(f"source {INIT}", *words, of=[program, "2", "crash"]).documents
    assert first["threads"][0]["signal"] is None
    assert second["threads"][0]["signal"] == "SIGSEGV"


def test_without_a_process_that_is_stopped(program: Path) -> None:
    for words in ([f"source {INIT}", "dispatch-bt"], [f"source {INIT}", f"file {program}", "dispatch-bt"]):
        outcome = gdb(*words)
        assert "gdb has no process and no core" in outcome.stderr
        assert "try: attach PID" in outcome.stderr
    (document,) = gdb(f"source {INIT}", "run", "dispatch-bt --json", of=["/bin/true"]).documents
    assert "no process" in document["errors"][0]["what"]
    outcome = gdb(f"source {INIT}", "starti", "continue &", "dispatch-bt", "kill", of=[program, "2"])
    assert "is running" in outcome.stderr
    assert "try: stop it first: interrupt" in outcome.stderr


def test_completion_and_wrong_arguments(plain: Plain) -> None:
    words = ("complete dispatch-bt --na", "complete dispatch-bt --thread ", "dispatch-bt --bogus")
    outcome = gdb(f"source {INIT}", *words, 'dispatch-bt "unbalanced', "echo ALIVE\\n", pid=plain.pid)
    shown = outcome.stdout.splitlines()
    numbered = {f"dispatch-bt --thread {number}" for number in range(1, 5)}
    assert {"dispatch-bt --native", "ALIVE", *numbered} <= set(shown)
    assert "unrecognized arguments: --bogus" in outcome.stderr


def test_a_core_goes_by_gdbs_thread_numbers_and_sysroot(plain: Plain, program: Path, tmp_path: Path) -> None:
    core = plain_program.take_gcore(plain.pid, tmp_path / "a core")
    moved, hidden = tmp_path / "root" / str(program).lstrip("/"), program.with_name("hidden")
    moved.parent.mkdir(parents=True)
    shutil.copy(program, moved)
    program.rename(hidden)
    try:
        words = (f"source {INIT}", f"set sysroot {tmp_path}/root", f"core {core}", "thread 2")
        outcome = gdb(*words, "dispatch-bt --native --json", "dispatch-break --list")
    finally:
        hidden.rename(program)
    (document,) = outcome.documents
    (thread,) = document["threads"]
    assert document["target"]["kind"] == "core"
    assert thread["number"] == 2
    assert thread["frames"][0]["function"] == "stand_still"
    assert "no breakpoints of dispatch-break" in outcome.stdout, outcome


def test_gdbserver(plain: Plain) -> None:
    if shutil.which("gdbserver") is None:
        pytest.skip("no gdbserver here")
    words = [f"target remote | gdbserver --once --attach - {plain.pid}", f"source {INIT}", "dispatch-bt --all --json"]
    outcome = gdb(*words, "detach")
    (document,) = outcome.documents
    assert {thread["tid"] for thread in document["threads"]} == {thread["tid"] for thread in plain.truth["threads"]}


def test_the_commands_are_words_of_dispatch_too() -> None:
    """Sourced by whatever path."""
    alone = gdb("source init.py", "dispatch-keyset CPU", cwd=INIT.parent)
    outcome = gdb("source ../gdbext/init.py", "dispatch keyset CPU", cwd=INIT.parent)
    assert (outcome.stdout, outcome.stderr) == (alone.stdout, alone.stderr)
    listed = gdb(f"source {INIT}", "help dispatch", "dispatch nonsense", "dispatch")
    assert "dispatch threads -- Show what each thread does" in listed.stdout
    assert 'there is no "dispatch nonsense"' in listed.stderr
    assert "no process and no core" in listed.stderr
    assert "Python Exception" not in listed.stderr
