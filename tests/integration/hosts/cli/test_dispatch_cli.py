"""scripts/dispatch: its command line, its errors, and that the process goes on whatever happens to it."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gdbext.hosts.cli import launcher
from gdbext.hosts.cli.debugger_runner import DebuggerProcess
from support.installed import pythons
from support.programs import plain_program, procfs
from support.programs.harness import DISPATCH, PATIENCE, Outcome, executable, run, wait_until
from support.programs.plain_program import Plain, running
from support.programs.user_debuggers import error_of

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

DEBUGGERS = ["gdb", "none"]


@pytest.fixture(scope="module")
def core(shared: Plain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_program.take_gcore(shared.pid, tmp_path_factory.mktemp("core") / "a core")


def dispatch(*words: str | Path, **options: Any) -> Outcome:
    return run([DISPATCH, *words], **options)


def look(plain: Plain, *words: str, debugger: str = "gdb", **options: Any) -> Outcome:
    return dispatch("-p", str(plain.pid), "--debugger", debugger, "--json", "dispatch-bt", *words, **options)


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_a_live_process(plain: Plain, debugger: str) -> None:
    outcome = look(plain, "--all", "--native", debugger=debugger)
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    target = outcome.document["target"]
    paused, stops = target.pop("paused_ms"), target.pop("stops", None)
    unstopped = (paused, stops) == (0, 0)  # every thread sleeps: without a debugger nobody has to be stopped
    assert unstopped if debugger == "none" else 0 < paused < 10_000 and stops >= 1
    named = {"kind": "live", "pid": plain.pid, "debugger": debugger, "architecture": platform.machine()}
    assert target == {**named, "torch": None, "python": None}
    assert {t["tid"] for t in outcome.document["threads"]} == {t["tid"] for t in plain.truth["threads"]}
    assert all(thread["frames"] for thread in outcome.document["threads"])


def test_no_debugger_is_the_default_for_what_only_reads(plain: Plain, core: Path) -> None:
    for where in (("-p", str(plain.pid)), ("-c", str(core))):
        outcome = dispatch(*where, "--json", "dispatch-info", env={"GDB": "/nonexistent"})
        assert outcome.document["target"]["debugger"] == "none"


@pytest.mark.parametrize(("name", "value"), [("PYTHONPATH", "."), ("PYTHONHOME", "."), ("LC_ALL", "C")])
def test_text_from_any_folder_and_environment(plain: Plain, tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('the wrong argparse')")
    link = tmp_path / "my dispatch"
    link.symlink_to(DISPATCH)
    settings = {name: str(tmp_path) if value == "." else value}
    outcome = run([link, "-p", str(plain.pid), "dispatch-bt", "--native"], cwd=tmp_path, env=settings)
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert str(plain.pid) in outcome.stdout
    assert "\x1b" not in outcome.stdout


def test_an_older_python_looks_for_a_newer_one(tmp_path: Path) -> None:
    found = [pythons.need("3.6"), pythons.need("3.8")]
    (tmp_path / "readlink").symlink_to("/usr/bin/readlink")
    for old in found:
        alone = dispatch("--version", env={"GDBEXT_PYTHON": old, "PATH": str(tmp_path)})
        assert alone.status == 1, alone
        assert "3.9 or later is needed" in alone.stderr
    (tmp_path / "python3.11").symlink_to("/usr/bin/python3")
    words = {"GDBEXT_PYTHON": found[0], "PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert dispatch("--version", env=words).stdout.startswith("gdbext ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dispatch-bt"], "specify what to examine"),
        (["-p", "1", "-c", "x", "dispatch-bt"], "only one of"),
        (["dispatch-bt", "--"], "no PROGRAM"),
        (["-p", "-5"], "is not a process id"),
        (["-p"], "needs a value"),
        (["-p", "1", "dispatch-tb"], "no command 'dispatch-tb'; did you mean dispatch-bt"),
        (["-p", "1", "--debugger", "windbg"], "is not one of gdb, lldb, none"),
        (["-p", "1", "--timeout", "soon"], "is not a number of seconds"),
        (["-p", "1", "--timeout", "inf"], "at most 1e+09"),
        (["-p", "1", "--timeout", "nan"], "greater than 0"),
        (["-c", "x", "--sysroot", "/nowhere"], "is not a folder"),
        (["-p", "1", "--sysroot", "/"], "for core dumps"),
        (["--debugger", "none", "dispatch-bt", "--", "true"], "only by a debugger"),
    ],
)
def test_wrong_usage(words: list[str], said: str) -> None:
    outcome = dispatch(*words)
    assert (outcome.status, outcome.stdout) == (2, ""), outcome
    assert said in outcome.stderr
    error_of(dispatch("--json", *words), said, status=2)


def test_no_process() -> None:
    words = ("-p", "1073741824", "dispatch-bt")
    error_of(dispatch("--json", *words), "no process 1073741824")
    plain_text = dispatch(*words)
    assert (plain_text.status, plain_text.stdout) == (1, "")
    assert re.search(r"why:.*\n.*try:", plain_text.stderr)


def test_somebody_else_traces_it(plain: Plain) -> None:
    """Without a debugger it is read as it stands: diagnosis/test_kernel_waits.py."""
    words = ["gdb", "-nx", "-q", "-p", str(plain.pid)]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: set(plain.states()) == {"t"}, "the other gdb has attached")
        error = error_of(look(plain), f"process {other.pid} (gdb)")
        assert "source gdbext/init.py" in error["help"]
    finally:
        other.communicate(b"detach\nquit\n", timeout=PATIENCE)


@pytest.mark.parametrize(
    ("content", "debugger", "said"),
    [
        (b"", "gdb", "is empty"),
        (b"\x28\xb5\x2f\xfd" + bytes(50), "gdb", "compressed with zstd"),  # gdb takes no core to be unpacked
        (b"\x28\xb5\x2f\xfd" + bytes(50), "none", "cannot be unpacked"),
        (None, "none", "there is no file"),
    ],
)
def test_bad_cores(tmp_path: Path, debugger: str, content: bytes | None, said: str) -> None:
    path = tmp_path / "bad core"
    if content is not None:
        path.write_bytes(content)
    error = error_of(dispatch("-c", path, "--debugger", debugger, "--json", "dispatch-bt"), said)
    assert error["why"]
    assert error["help"]


def test_without_gdb(plain: Plain, tmp_path: Path) -> None:
    for name in ("sh", "readlink"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    missing = {"PATH": str(tmp_path)}
    error = error_of(look(plain, env=missing), "gdb was not found")
    assert "apt-get install gdb" in error["help"]
    assert "--debugger none" in error["help"]
    assert look(plain, debugger="none", env=missing).status == 0


def test_a_gdb_that_does_not_work(plain: Plain, tmp_path: Path) -> None:
    mute = executable(tmp_path / "gdb", "#!/bin/sh\necho 'Python scripting is not supported in this copy' >&2\n")
    error = error_of(look(plain, env={"GDB": str(mute)}), "exited with status 0")
    assert "Python scripting is not supported" in error["why"]
    broken = executable(tmp_path / "gdb", "\x7fELF, but no more")
    error_of(look(plain, env={"GDB": str(broken)}), "gdb cannot be started")
    killed = executable(tmp_path / "gdb", f"#!/bin/sh\nsleep 1000 & echo $! > '{tmp_path}/child'\nkill -9 $$\n")
    error_of(look(plain, env={"GDB": str(killed)}), "was killed by signal 9")
    child = int((tmp_path / "child").read_text())  # gdb's, which has the pipe of the report, too
    wait_until(lambda: ended(child), "nothing is left of it")


@pytest.mark.parametrize("debugger", DEBUGGERS)
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors(plain: Plain, debugger: str, closed: str) -> None:
    """No pipe of ours may take their place: a report that cannot be written is told, and nothing else happens."""
    words = f'exec "$0" -p {plain.pid} --debugger {debugger} dispatch-bt {closed}'
    outcome = run(["sh", "-c", words, DISPATCH])
    lost = ">&-" in closed and closed != "2>&-"
    assert outcome.status == lost, outcome
    assert outcome.stdout.startswith("Thread") is not lost
    assert outcome.stderr == ("dispatch: cannot write the report: Bad file descriptor\n" if closed == ">&-" else "")


FREEZE = """
import gdb, os, signal

def execute(command, *rest, plain=gdb.execute):
    said = plain(command, *rest)
    if command.startswith("attach"):
        os.kill(os.getpid(), signal.SIGSTOP)
    return said

gdb.execute = execute
"""


@pytest.fixture
def freezing(tmp_path: Path) -> Path:
    """A gdb that freezes when it has attached."""
    (tmp_path / "freeze.py").write_text(FREEZE)
    command = f'echo $$ >"{tmp_path}/pid"; exec {shutil.which("gdb")} -iex "source {tmp_path}/freeze.py" "$@"'
    return executable(tmp_path / "gdb", f"#!/bin/sh\n{command}\n")


def start(plain: Plain, gdb: Path) -> tuple[subprocess.Popen[str], int]:
    """scripts/dispatch in the background, and its gdb, which has attached and was frozen just then."""
    command = [DISPATCH, "-p", str(plain.pid), "--debugger", "gdb", "--json", "dispatch-bt"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": {**os.environ, "GDB": str(gdb)}}
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)

    def frozen() -> int:
        assert process.poll() is None, process.communicate()
        tracer = int(procfs.status(plain.pid)["TracerPid"])
        return tracer if tracer and procfs.state(tracer, tracer) == "T" else 0

    return process, wait_until(frozen, "gdb has attached")


def error_at_the_end(process: subprocess.Popen[str]) -> str:
    """What it says went wrong, "" where it had finished before."""
    stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, 1)
    return str(json.loads(stdout)["errors"][0]["what"]) if process.returncode else ""


def ended(pid: int) -> bool:
    return not procfs.alive(pid)


@pytest.mark.parametrize("thawed", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_when_we_are_interrupted(plain: Plain, freezing: Path, number: int, thawed: bool) -> None:
    process, gdb = start(plain, freezing)
    if thawed:
        os.kill(gdb, signal.SIGCONT)
    process.send_signal(number)
    assert error_at_the_end(process) in ({"interrupted", ""} if thawed else {"interrupted"})
    assert ended(gdb)


def test_when_gdb_is_killed(plain: Plain, freezing: Path) -> None:
    process, gdb = start(plain, freezing)
    os.kill(gdb, signal.SIGKILL)
    assert "killed by signal 9" in error_at_the_end(process)


def test_when_we_are_killed(plain: Plain, freezing: Path) -> None:
    process, gdb = start(plain, freezing)
    os.kill(gdb, signal.SIGCONT)  # first: the kernel sends SIGHUP to a stopped group whose parent goes
    process.kill()
    process.communicate(timeout=PATIENCE)
    wait_until(lambda: ended(gdb), "gdb ends by itself")


def test_when_the_time_is_up(plain: Plain, freezing: Path) -> None:
    """However far gdb has come by then."""
    error_of(look(plain, "--timeout", "3", env={"GDB": str(freezing)}), "no report within 3 s")
    assert all(ended(int(file.read_text())) for file in freezing.parent.glob("pid"))
    error_of(look(plain, "--all", "--timeout", "0.001", debugger="none"), "no report within 0.001 s")


def test_a_stopped_process_stays_stopped(program: Path) -> None:
    with running(program, "2") as plain:
        os.kill(plain.pid, signal.SIGSTOP)
        wait_until(lambda: set(plain.states()) == {"T"}, "it is stopped")
        assert look(plain, "--all").status == 0
        wait_until(lambda: set(plain.states()) == {"T"}, "it is stopped again")
        os.kill(plain.pid, signal.SIGCONT)
        wait_until(plain.is_untouched, "it continues")


def test_output_that_nobody_reads(plain: Plain) -> None:
    words = f"{DISPATCH} -p {plain.pid} dispatch-bt --all --native"
    done, full = run(["bash", "-c", f"{words} | head -c 1"]), run(["bash", "-c", f"{words} > /dev/full"])
    assert "Traceback" not in done.stderr + full.stderr
    assert full.status == 1
    assert "No space left" in full.stderr


def test_a_program_that_crashes(program: Path) -> None:
    outcome = dispatch("dispatch-bt", "--json", "--", program, "2", "crash")
    assert outcome.status == 0, outcome
    (thread,) = outcome.document["threads"]
    assert thread["signal"] == "SIGSEGV"
    assert '"magic"' in outcome.stderr  # what the program prints is not in the report


def test_a_program_that_hangs(
    program: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its time is up when it hangs."""
    wait = DebuggerProcess._wait

    def wait_for_the_hang(gdb: DebuggerProcess, _: float | None) -> list[int]:
        monkeypatch.setattr(DebuggerProcess, "_wait", wait)
        wait_until(lambda: any(hangs(pid) for pid in procfs.children(gdb._pid)), "the program hangs")
        return []

    def hangs(pid: int) -> bool:
        return [procfs.state(pid, tid) for tid in procfs.threads(pid)] == ["S"] * 3

    monkeypatch.setattr(DebuggerProcess, "_wait", wait_for_the_hang)
    assert launcher.main(["--timeout", "60", "dispatch-bt", "--all", "--json", "--", str(program), "2"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert len(document["threads"]) == 3
    assert ended(document["target"]["pid"])


def test_a_crash_outside_of_the_dispatcher_is_shown_with_ten_frames(tmp_path: Path) -> None:
    script = tmp_path / "crash.py"
    script.write_text("import ctypes\ndef read(n):\n    ctypes.string_at(n)\nread(8)\n")
    text = dispatch("--", sys.executable, str(script)).stdout
    assert re.match(
        r"\S+ \(tid \d+\) crashed in .+, called at \S+ \(string_at\): SIGSEGV at 0x8: a null pointer plus 8\.\n", text
    )
    frames = re.findall(r"^#.*", text, re.MULTILINE)
    assert len(frames) == 10
    assert "string_at" in "".join(frames)
    assert f"      from {script}:3 (read)\n" in text
    again = f"dispatch-bt --native -- {sys.executable} {script}"
    assert f"What to try next\n  - All native frames of the crash: {DISPATCH} {again}\n" in text
    assert "gcore" not in text


def test_a_program_that_ends_and_one_that_is_not_there() -> None:
    outcome = dispatch("dispatch-bt", "--json", "--", "/bin/sh", "-c", "echo said; exit 3")
    assert outcome.status == 3
    own = "dispatch: the program exited with status 3: it neither crashed nor hung"
    assert outcome.stderr.splitlines() == ["said", own]
    assert "status 3" in outcome.document["errors"][0]["what"]
    absent = dispatch("dispatch-bt", "--json", "--", "/nowhere/program")
    assert absent.status == 1, absent
    assert re.search("/nowhere/program|not.*run", absent.document["errors"][0]["what"])


def test_an_executable_and_what_to_look_at_start_nothing(plain: Plain, core: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = executable(tmp_path / "train", f"#!/bin/sh\ntouch {started}\n")
    assert "warning: process" in dispatch(program, str(plain.pid)).stderr
    assert dispatch(program, core, "bt", "--args").status == 0
    for word, status in (("bt", 2), ("coredumpctl:7", 1), ("-p7", 2), (f"--resume={core}", 2)):
        assert dispatch(program, word).status == status
    assert not started.exists()
    dispatch("--", program, "bt")
    assert started.exists(), "the program tells that it was started"


def test_an_executable_that_did_not_write_the_core(core: Path, program: Path, tmp_path: Path) -> None:
    """Build-ids decide, not names; -q does not hide it, as in gdb; nothing is said of the right one, or of a copy."""
    packed, copy, other = tmp_path / "core.gz", shutil.copy(program, tmp_path / "renamed"), tmp_path / program.name
    packed.write_bytes(gzip.compress(core.read_bytes(), 1))
    (tmp_path / "other.c").write_text("int main(void) { return 0; }")
    run(["gcc", "-Wl,--build-id", "-o", other, tmp_path / "other.c"])
    for right in (program, copy):
        assert dispatch("--debugger", "none", right, core, "dispatch-info").stderr == ""
    for debugger, named, wrong, said in (
        ("none", packed, other, f"not {other}"),
        ("gdb", core, other, f"not {other}"),
        ("none", core, tmp_path / "gone", f"there is no file {tmp_path / 'gone'}"),
    ):
        done = dispatch("--debugger", debugger, "-q", "-c", named, wrong, "dispatch-info")
        assert done.status == 0, done
        assert said in done.stderr
        assert f"was written by {program}" in done.stderr
