"""What lets the process run inside a user's own gdb, as editors run it (MI) and on the console: every command has its
result, every stop a frame, all output is gdb's; descriptors, settings and the job are as before."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import reduce
from operator import or_
from pathlib import Path

import pytest

from support.installed import gdbs
from support.installed.probing import PROBES, links_on
from support.programs import harness, procfs
from support.programs.code_bytes import changed_text
from support.programs.dap_session import DapSession
from support.programs.debugger_terminal import DebuggerTerminal
from support.programs.harness import NO_SYMBOLS, Inferior, Pool, Start, wait_until
from support.programs.mi_session import WELL_FORMED, MiSession, console_text
from support.programs.user_debuggers import GDB_INIT, SOURCE, gdb, goes_on

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.xdist_group("gdb_resuming")]

TRACE = "dispatch-trace --engine breakpoints --all --limit 3"
VALUES = "dispatch-values print aten::add.Tensor --limit 1"
BY_BREAKPOINTS = f"{VALUES} --engine breakpoints"
SAMPLES = "dispatch-diagnose --samples 3 --interval 0.1"
SILENT = "dispatch-trace aten::mm"
"""It shows nothing until it is interrupted."""


@pytest.fixture
def job(small_calls: Inferior) -> Iterator[Inferior]:
    yield small_calls
    is_whole(small_calls)


def is_whole(job: Inferior) -> None:
    """The program computes, nobody holds it, and its code is that of the files."""
    wait_until(lambda: not changed_text(job.pid), "its code is whole")
    goes_on(job)


@contextmanager
def attached(name: str, job: Inferior) -> Iterator[MiSession]:
    """An editor's gdb, which is killed (kill -9) at the end."""
    with closing(MiSession(gdbs.executable(name), GDB_INIT)) as editor:
        editor.command(f"-target-attach {job.pid}")
        yield editor
    is_whole(job)


@pytest.mark.parametrize("name", gdbs.parameters())
def test_editors_get_results_stops_and_console_records(job: Inferior, name: str) -> None:
    with attached(name, job) as editor:
        settings = console_text(editor.console("show"))
        for command, said in ((TRACE, "[call] op=[aten::add.Tensor]"), (BY_BREAKPOINTS, "Number of elements: 4")):
            lines = editor.console(command)
            assert len(stops(editor, lines)) == 1, lines
            assert said in console_text(lines)
            assert "a gdb that is killed (kill -9) while breakpoints are in the code" in console_text(lines)
        editor.console("handle SIGUSR2 stop print nopass")
        os.kill(job.pid, signal.SIGUSR2)
        assert "the process got SIGUSR2" in console_text(editor.console(f"{SILENT} --engine breakpoints"))
        lines = editor.console(SAMPLES)
        assert "samples over" in console_text(lines)
        assert not [line for line in lines if "exited" in line or "thread-group" in line], lines
        before, after = (set(text.splitlines()) for text in (settings, console_text(editor.console("show"))))
        assert not {line for line in before ^ after if not re.match(r"\$|convenience:|.*history", line)}
        editor.console("break small_calls_has_no_such_function")
        editor.command("-break-insert -f nowhere_at_all")
        assert re.search(r'bkpt=\{number="1"', "\n".join(editor.lines)), "our breakpoints took a number of the user's"
        editor.command("-target-detach")
        assert not [line for line in editor.lines if line and not WELL_FORMED.fullmatch(line)]


def stops(editor: MiSession, lines: list[str]) -> list[str]:
    """The stops of a command that lets the process run, which has a result, stops with a frame and a thread, and shows
    in no list of breakpoints."""
    assert editor.result(lines) == "running", lines
    found = [line for line in lines if line.startswith("*stopped")]
    assert all(",frame={" in line and ",thread-id=" in line for line in found), lines
    assert not [line for line in lines if line.startswith("=breakpoint")], lines
    return found


@pytest.mark.parametrize(("hook", "key"), [("call", "AutogradCPU"), ("redispatch", "CPU")])
def test_bt_says_what_the_stop_has_said(job: Inferior, hook: str, key: str) -> None:
    """The keyset is in a register at the instruction that looks it up, and nowhere else yet."""
    commands = (f"dispatch-break {hook} aten::add.Tensor --why", "continue", "dispatch-bt --json", "delete")
    outcome = gdb(SOURCE, f"attach {job.pid}", *commands, "detach", options=NO_SYMBOLS)
    keyset = re.search(r"keyset DispatchKeySet\(.*\) (0x[0-9a-f]+)", outcome.stdout)
    assert keyset is not None, outcome
    innermost = outcome.documents[0]["threads"][0]["dispatch"][0]
    assert (innermost["op"], innermost["key"], innermost["confidence"]) == ("aten::add", key, "exact")
    assert innermost["keyset"]["bits"] == keyset.group(1)


def test_the_debug_adapter_protocol() -> None:
    """Stacks with added frames, results of resuming commands, and no end of the session. A program of its own, for
    breakpoints are lost in one that has had probes; they come first here."""
    words = ["-nx", "-q", "-i=dap", "-iex", "set auto-solib-add off", "-ex", SOURCE]
    with harness.started("small_calls") as job, closing(DapSession([gdbs.executable("gdb18"), *words])) as editor:
        editor.attach(job.pid)
        thread = editor.request("threads")["body"]["threads"][0]["id"]
        for command in ("dispatch-break call aten::add.Tensor", "continue", "dispatch-frames on"):
            editor.evaluate(command)
        stack = editor.request("stackTrace", {"threadId": thread, "startFrame": 0, "levels": 30})
        names = [frame["name"].strip() for frame in stack["body"]["stackFrames"]]
        assert "[call] op=[aten::add.Tensor], key=[AutogradCPU]" in names
        editor.evaluate("delete")
        before = len(editor.events("continued"))
        assert "samples over" in editor.evaluate(SAMPLES)
        assert len(editor.events("continued")) - before == 2
        for command in (f"{SILENT} --engine breakpoints", SILENT):
            number = run_on(editor, command)
            editor.request("pause", {"threadId": thread})
            assert "interrupted" in editor.result(number)
            assert editor.request("stackTrace", {"threadId": thread, "levels": 1})["success"], "it stands still"
        assert not editor.events("exited", "terminated")
        number = run_on(editor, SILENT)
        editor.request("disconnect", {"terminateDebuggee": False})
        assert "interrupted" in editor.result(number)
        editor.close()
        is_whole(job)


def run_on(editor: DapSession, command: str) -> int:
    before = len(editor.events("continued"))
    number = editor.begin(command)
    editor.until("continued", before + 1)
    return number


@pytest.mark.parametrize("command", [TRACE, VALUES])
def test_what_is_shown_is_in_the_string_that_was_asked_for(job: Inferior, command: str) -> None:
    ask = f"python print(gdb.execute({command!r}, False, True).count('aten::add.Tensor') > 0)"
    shown = gdb(SOURCE, f"attach {job.pid}", ask, "detach", options=NO_SYMBOLS).stdout
    assert "True\n" in shown
    assert "aten::add" not in shown


def test_modes_in_which_continue_is_something_else_are_refused(job: Inferior) -> None:
    """Recording, and threads that run and stop by themselves; the process goes on. (gdb's own detach in non-stop
    mode leaves it stopped, with or without us.)"""
    attach = f"attach {job.pid}"
    commands = [SOURCE, attach, "record full", VALUES, "record stop", VALUES, "detach"]
    commands += [attach, "set scheduler-locking on", VALUES, "dispatch-break call aten::add.Tensor", "detach"]
    commands += ["set scheduler-locking replay", "set non-stop on", attach, VALUES, "detach"]
    done = gdb(*commands, f"shell kill -CONT {job.pid}", options=NO_SYMBOLS)
    said = done.stdout + done.stderr
    assert "try: record stop" in said, said
    assert said.count("1 call seen") == 1, said
    assert "try: detach, set non-stop off, attach again" in said, said
    assert said.count("would run alone, without the threads that it may wait for") == 3, said  # the ending, why, a note


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        pytest.param("follow-fork-mode child", "a child, exited with status 3; process ", id="child"),
        pytest.param("detach-on-fork off", "has been stopped since the fork, as inferior 2", id="held"),
    ],
)
def test_forks_are_told(setting: str, said: str) -> None:
    program = ["/usr/bin/python3", "-c", "import os; os.fork() or os._exit(3)"]
    done = gdb(SOURCE, f"set {setting}", "dispatch-trace mm", options=NO_SYMBOLS, of=program)
    shown = done.stdout + done.stderr
    assert said in shown, done
    assert shown.count("has been stopped since") == ("off" in setting)


@PROBES
def test_a_gdb_that_is_killed_while_probes_watch_harms_no_process() -> None:
    """By default nothing of ours is in the code, what the kernel's probes put there goes with them, and gdb's own
    breakpoints in the loader are kept out."""
    command = "dispatch-values print aten::add.Tensor"
    with harness.started("small_calls") as job, attached("gdb", job) as editor:
        lines = editor.console(f"{command} --limit 3")
        assert stops(editor, lines), lines
        assert "result0 ]" in console_text(lines)
        assert not changed_text(job.pid)
        assert "No breakpoints" in console_text(editor.console("info breakpoints"))
        for _ in range(2):
            first = len(editor.lines)
            begin(editor, job, command)
            os.kill(editor.process.pid, signal.SIGINT)  # Ctrl+C, an editor's pause
            editor.command("-list-features")
            assert "interrupted" in "".join(editor.lines[first:])
            assert not signals_of(job.pid) >> signal.SIGINT - 1 & 1, "a detach would end the process"
        begin(editor, job, command)
        wait_until(lambda: not changed_text(job.pid, "/ld-"), "gdb's own breakpoint in the loader is out")


def begin(editor: MiSession, job: Inferior, command: str) -> None:
    wait_until(lambda: not links_on(job.pid), "the probes of the last one are gone")
    editor.send(f'-interpreter-exec console "{command}"\n')

    first = len(editor.lines)

    def placed() -> bool:
        """gdb may report the last Ctrl+C twice: a SIGINT that it took from the kernel while it stopped for another
        reason ends this command as it begins."""
        nonlocal first
        editor.take(editor.read(0))
        if "0 calls seen; ended: interrupted" in "".join(editor.lines[first:]):
            first = len(editor.lines)
            editor.send(f'-interpreter-exec console "{command}"\n')
        return bool(links_on(job.pid))

    try:
        wait_until(placed, "the probes are placed")
    except harness.HarnessError as error:
        raise harness.HarnessError(f"{error}: {editor.lines[-20:]}") from error


def signals_of(pid: int) -> int:
    """The signals that wait for a process or one of its threads, as bits."""
    status = "".join(each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/status"))
    return reduce(or_, (int(each, 16) for each in re.findall(r"(?:SigPnd|ShdPnd):\s*([0-9a-f]+)", status)))


@PROBES
def test_breakpoints_that_the_kernel_took_out_are_put_back(job: Inferior) -> None:
    """It does when the probes of another process end at the same place, in a process that had probes once."""
    with attached("gdb", job) as editor:
        editor.console("dispatch-trace --all --engine probes --limit 1")
        shown = console_text(editor.console("dispatch-break call aten::mul.Tensor"))  # the program never calls it
        place = re.search(r"breakpoint \d+ at 0x([0-9a-f]+): aten::mul.Tensor call", shown)
        assert place is not None, shown
        address = int(place[1], 16)
        editor.send("-exec-continue\n")
        with open(f"/proc/{job.pid}/mem", "rb", buffering=0) as memory, harness.started("small_calls") as other:
            wait_until(lambda: os.pread(memory.fileno(), 1, address) == b"\xcc", "gdb has set the breakpoint")
            other.dispatch("dispatch-trace", "--all", "--limit", "1", debugger="none", json=False)
            wait_until(lambda: os.pread(memory.fileno(), 1, address) == b"\xcc", "the breakpoint is in the code again")


@PROBES
def test_probes_stop_where_breakpoints_would_and_a_kill_harms_no_process() -> None:
    """The stop is reported as that of a breakpoint is; each is in gdb's list; and nothing is in the code."""
    with harness.started("small_calls") as job, attached("gdb18", job) as editor:
        editor.console("dispatch-break lookup aten::add.Tensor --key CPU --engine probes")
        lines = editor.console("continue") + editor.console("dispatch-break --list")
        (stopped,) = (line for line in lines if line.startswith("*stopped"))
        assert ",frame={" in stopped
        shown = console_text(lines)
        assert shown.count("dispatch-break: aten::add.Tensor at") == 1, shown
        assert "Catchpoint 1" not in shown
        assert "aten::add.Tensor at redispatch" in shown, "the call has another key"
        assert "key CPU, kernel " in shown
        assert shown.count(", 0 hits") == shown.count(", 1 hit\n") == 1, shown
        assert "cannot be mixed" in "".join(editor.console("dispatch-break call mm --engine breakpoints"))
        editor.console("dispatch-break --delete")
        assert "No breakpoints" in console_text(editor.console("info breakpoints"))
        editor.console("dispatch-break call aten::add.Tensor --continue --engine probes")
        editor.send('-interpreter-exec console "continue"\n')
        editor.until("dispatch-break: aten::add.Tensor at call")


def test_loaded_by_a_team_s_own_loader(tmp_path: Path) -> None:
    """A script of .gdbinit's that sources a script: __file__ is the outer one's, and a package beside that is not
    ours."""
    (tmp_path / "__init__.py").write_text("raise SystemExit('the neighbour was run')")
    (tmp_path / "loader.py").write_text(f"import gdb\ngdb.execute('{SOURCE}')\n")
    (tmp_path / "outer.py").write_text(f"import gdb\ngdb.execute('source {tmp_path}/loader.py')\n")
    (tmp_path / ".gdbinit").write_text(f"source {tmp_path}/outer.py\n")
    done = gdb("help dispatch-bt", first=[], env={"HOME": str(tmp_path)})
    assert "Show the dispatcher's path" in done.stdout, done
    assert "--native" in done.stdout, "the whole help is there, though -batch shows no prompt"
    assert "neighbour" not in done.stdout + done.stderr


@pytest.fixture
def strange(inferior_pool: Pool) -> Iterator[Inferior]:
    found = inferior_pool.get("strange-names", "doomed")
    yield found
    inferior_pool.discard(found)


def test_threads_that_run_cost_themselves(strange: Inferior) -> None:
    """Non-stop: only the thread that gdb stopped can be read, and the report says so of the other. (Detached at once,
    gdb 13 leaves the process stopped in this mode.)"""
    options = (*NO_SYMBOLS, "-iex", "set non-stop on")
    text = gdb(SOURCE, "dispatch-bt --all", "detach", options=options, pid=strange.pid).stdout
    assert "stand_still" in text
    assert f"thread {strange.tid('nameless')} is running" in text


def test_the_process_is_killed_while_gdb_holds_it(strange: Inferior) -> None:
    """What was read at this stop stays known; whatever was not says that the process has ended."""
    kill = f"shell kill -9 {strange.pid}; until grep -q State:.Z /proc/{strange.pid}/status; do :; done"
    outcome = gdb(SOURCE, "dispatch-bt", kill, "dispatch-bt", "dispatch-info", options=NO_SYMBOLS, pid=strange.pid)
    assert re.search(r"process \d+ has exited", outcome.stderr), outcome


def test_control_c_in_a_users_gdb(inferior: Start) -> None:
    hang = inferior("meta-mm")
    options = ("-iex", "set style enabled off", "-iex", "set confirm off", "-iex", "set pagination off")
    with closing(DebuggerTerminal(["gdb", "-nx", "-q", *NO_SYMBOLS, *options], "(gdb) ")) as terminal:
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
