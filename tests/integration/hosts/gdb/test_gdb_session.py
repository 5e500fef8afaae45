"""Inside gdb: sourcing leaves no trace, and commands change neither the selection nor a setting."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.programs import plain_program
from support.programs.harness import PATIENCE, ROOT, Outcome
from support.programs.plain_program import Plain
from support.programs.user_debuggers import SOURCE, gdb

pytestmark = [pytest.mark.gdb, pytest.mark.compiler]


def lines(outcome: Outcome, mark: str) -> list[str]:
    return [line[len(mark) + 1 :] for line in outcome.stdout.splitlines() if line.startswith(mark + " ")]


def test_sourcing_leaves_nothing_behind_and_imports_little() -> None:
    shown = "sorted(globals()), __doc__, sys.path, sys.dont_write_bytecode, hash(gdb.execute('show', False, True))"
    state = f"python import sys; print('STATE', {shown})"
    modules = "python print('MODULES', 'gdbext.diagnosis.session' in sys.modules)"
    outcome = gdb(state, SOURCE, state, SOURCE, state, modules)
    before, once, twice = lines(outcome, "STATE")
    assert before == once == twice
    assert lines(outcome, "MODULES") == ["False"]


def test_sourcing_again_at_a_prompt(program: Path) -> None:
    """Prompts finish the help, and take printers back from object files without debug information."""
    count = "python print('COUNT', sum(len(each.pretty_printers) for each in gdb.objfiles()))"
    typed = "\n".join((SOURCE, count, "print 1", count, SOURCE, count, "help dispatch-bt", "print 1", count, ""))
    command = ["gdb", "-nx", "-q", "-iex", "set debuginfod enabled off", "-iex", "set width 0", str(program)]
    outcome = subprocess.run(command, input=typed, text=True, capture_output=True, timeout=PATIENCE)
    assert "Error" not in outcome.stderr
    assert [line.split()[-1] for line in outcome.stdout.splitlines() if "COUNT" in line] == ["1", "0", "1", "0"]
    assert "--native" in outcome.stdout


def test_sourcing_again_takes_a_changed_version(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "gdbext", tmp_path / "gdbext", ignore=shutil.ignore_patterns("data"))
    table, source = tmp_path / "gdbext/tools/table.py", f"source {tmp_path}/gdbext/init.py"
    changed = table.read_text().replace("Show the dispatcher's path", "A changed summary")
    change = f"python open({str(table)!r}, 'w').write({changed!r})"
    assert "A changed summary" in gdb(source, change, source, "help dispatch-bt").stdout


def test_the_selected_thread_and_frame_are_reported_and_stay_selected(plain: Plain) -> None:
    show = "python print('AT', gdb.selected_thread().num, gdb.selected_frame().level(), gdb.selected_frame().pc())"
    outer_reports = ["dispatch-bt --all --native --json", "dispatch-bt --json"]
    outer = ("thread 3", "frame 1", show, *outer_reports, show)
    others = ("dispatch-bt --all", "all-threads", "dispatch-bt --bogus")
    inner = ("frame 0", show, *others, show, "thread 2", "dispatch-bt --json")
    outcome = gdb(SOURCE, f"attach {plain.pid}", *outer, *inner)
    before, after, before_inner, after_inner = lines(outcome, "AT")
    assert before.startswith("3 1 ")
    assert before_inner.startswith("3 0 ")
    assert (before, before_inner) == (after, after_inner)
    assert [document["threads"][0]["number"] for document in outcome.documents[1:]] == [3, 2]
    assert {document["target"]["debugger"] for document in outcome.documents} == {"gdb"}


def test_registers_are_right_whatever_is_selected(plain: Plain) -> None:
    code = (
        f"python import sys; sys.path.append({str(ROOT)!r}); from gdbext.hosts.gdb.gdb_target import current_target; "
        "threads = ((t.tid, t.registers()) for t in current_target().threads()); "
        "print('REGS', sorted((tid, registers['rbx'], registers['fs_base']) for tid, registers in threads))"
    )
    inner, outer = lines(gdb("thread 2", code, "thread 3", "frame 1", code, pid=plain.pid), "REGS")
    magic = plain.truth["magic"]
    wanted = sorted((t["tid"], magic + 16 * i, t["tls"]) for i, t in enumerate(plain.truth["threads"]))
    assert inner == outer == str(wanted)


def test_what_was_read_is_forgotten_when_the_process_runs(program: Path) -> None:
    words = ("starti", "dispatch-bt --json", "continue", "dispatch-bt --json")
    first, second = gdb(SOURCE, *words, of=[program, "2", "crash"]).documents
    assert first["threads"][0]["signal"] is None
    assert second["threads"][0]["signal"] == "SIGSEGV"


def test_without_a_process_that_is_stopped(program: Path) -> None:
    for words in ([], [f"file {program}"]):
        outcome = gdb(SOURCE, *words, "dispatch-bt")
        assert "gdb has no process and no core" in outcome.stderr
        assert "try: attach PID" in outcome.stderr
    (document,) = gdb(SOURCE, "run", "dispatch-bt --json", of=["/bin/true"]).documents
    assert "no process" in document["errors"][0]["what"]
    outcome = gdb(SOURCE, "starti", "continue &", "dispatch-bt", "kill", of=[program, "2"])
    assert "is running" in outcome.stderr
    assert "try: stop it first: interrupt" in outcome.stderr


def test_completion_and_wrong_arguments(plain: Plain) -> None:
    words = ("complete dispatch-bt --na", "complete dispatch-bt --thread ", "dispatch-bt --bogus")
    outcome = gdb(SOURCE, *words, 'dispatch-bt "unbalanced', "echo ALIVE\\n", pid=plain.pid)
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
        words = (SOURCE, f"set sysroot {tmp_path}/root", f"core {core}", "thread 2")
        outcome = gdb(*words, "dispatch-bt --native --json", "dispatch-break --list")
    finally:
        hidden.rename(program)
    (document,) = outcome.documents
    (thread,) = document["threads"]
    assert (document["target"]["kind"], thread["number"]) == ("core", 2)
    assert thread["frames"][0]["function"] == "stand_still"
    assert "no breakpoints of dispatch-break" in outcome.stdout, outcome


def test_gdbserver(plain: Plain) -> None:
    if shutil.which("gdbserver") is None:
        pytest.skip("no gdbserver here")
    remote = f"target remote | gdbserver --once --attach - {plain.pid}"
    (document,) = gdb(remote, SOURCE, "dispatch-bt --all --json", "detach").documents
    assert {thread["tid"] for thread in document["threads"]} == {thread["tid"] for thread in plain.truth["threads"]}


def test_the_commands_are_words_of_dispatch_too() -> None:
    alone = gdb("source init.py", "dispatch-keyset CPU", cwd=ROOT / "gdbext")
    outcome = gdb("source ../gdbext/init.py", "dispatch keyset CPU", cwd=ROOT / "gdbext")
    assert (outcome.stdout, outcome.stderr) == (alone.stdout, alone.stderr)
    listed = gdb(SOURCE, "help dispatch", "dispatch nonsense", "dispatch")
    assert "dispatch threads -- Show what each thread does" in listed.stdout
    assert '"dispatch nonsense" is not a command' in listed.stderr
    assert "no process and no core" in listed.stderr
    assert "Python Exception" not in listed.stderr
