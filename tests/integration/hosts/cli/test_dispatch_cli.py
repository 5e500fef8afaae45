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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.installed import pythons
from support.programs import plain_program, procfs
from support.programs.harness import DISPATCH, PATIENCE, Outcome, run, wait_until
from support.programs.plain_program import Plain, running

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

DEBUGGERS = ["gdb", "none"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_program.build(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def shared(program: Path) -> Iterator[Plain]:
    with running(program, "3") as plain:
        yield plain


@pytest.fixture
def plain(shared: Plain) -> Iterator[Plain]:
    """A process that must be untouched afterwards."""
    yield shared
    wait_until(shared.is_untouched, "the process is as it was")


@pytest.fixture(scope="module")
def core(shared: Plain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_program.take_gcore(shared.pid, tmp_path_factory.mktemp("core") / "a core")


def dispatch(*words: str | Path, **options: Any) -> Outcome:
    return run([DISPATCH, *words], **options)


def assert_error_document(outcome: Outcome, words: str, status: int = 1) -> dict[str, Any]:
    assert outcome.status == status, outcome
    document = outcome.document
    assert document["schema"] == "gdbext/1"
    assert document["threads"] == []
    assert document["findings"] == []
    assert document["verdict"] is None
    (error,) = document["errors"]
    assert words in error["what"]
    assert set(error) >= {"what", "where", "help"}
    return document


# --- reports -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_a_live_process(plain: Plain, debugger: str) -> None:
    outcome = dispatch("-p", str(plain.pid), "--debugger", debugger, "dispatch-bt", "--all", "--native", "--json")
    assert outcome.status == 0, outcome
    target = outcome.document["target"]
    paused, stops = target.pop("paused_ms"), target.pop("stops", None)
    if debugger == "none":
        assert (paused, stops) == (0, 0), "every thread sleeps: nobody has to be stopped"
    else:
        assert paused is None if debugger == "lldb" else 0 < paused < 10_000
        assert stops is None if debugger == "lldb" else stops >= 1
    assert target == {
        "kind": "live",
        "pid": plain.pid,
        "debugger": debugger,
        "torch": None,
        "python": None,
        "architecture": platform.machine(),
    }
    assert {t["tid"] for t in outcome.document["threads"]} == {t["tid"] for t in plain.truth["threads"]}
    assert all(thread["frames"] for thread in outcome.document["threads"])
    assert outcome.stderr == ""


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_a_core(core: Path, shared: Plain, debugger: str) -> None:
    outcome = dispatch("--json", "-c", core, "--debugger", debugger, "dispatch-bt", "--all", "--native")
    assert outcome.status == 0, outcome
    assert outcome.document["target"]["kind"] == "core"
    assert outcome.document["target"]["debugger"] == debugger
    assert {t["tid"] for t in outcome.document["threads"]} == {t["tid"] for t in shared.truth["threads"]}
    assert outcome.stderr == ""


def test_text_goes_to_standard_output_alone(plain: Plain) -> None:
    outcome = dispatch("-p", str(plain.pid), "dispatch-bt", "--native")
    assert outcome.status == 0, outcome
    assert str(plain.pid) in outcome.stdout
    assert "\x1b" not in outcome.stdout
    assert outcome.stderr == ""


def test_no_debugger_is_the_default_for_what_only_reads(plain: Plain, core: Path) -> None:
    for where in (("-p", str(plain.pid)), ("-c", str(core))):
        outcome = dispatch(*where, "--json", "dispatch-info", env={"GDB": "/nonexistent"})
        assert outcome.document["target"]["debugger"] == "none"


def test_options_may_stand_anywhere(plain: Plain) -> None:
    pid = str(plain.pid)
    for words in (
        ["dispatch-bt", "-p", pid, "--json"],
        ["--json", "dispatch-bt", f"--pid={pid}"],
        ["--debugger=none", "dispatch-bt", "--all", "--pid", pid, "--json", "--timeout=60"],
    ):
        document = dispatch(*words).document
        assert document["command"] == "dispatch-bt"
        assert len(document["threads"]) == (4 if "--all" in words else 1)


def test_a_core_with_a_sysroot(core: Path, program: Path, tmp_path: Path) -> None:
    """The program is not where the core says, but below the sysroot: its code is found there."""
    moved = tmp_path / "root" / str(program).lstrip("/")
    moved.parent.mkdir(parents=True)
    shutil.copy(program, moved)
    words = ["-c", core, "--debugger", "none", "--json", "dispatch-bt", "--native"]
    hidden = program.with_name("hidden")
    program.rename(hidden)
    try:
        document = dispatch(*words, "--sysroot", tmp_path / "root").document
        assert document["threads"][0]["frames"][0]["function"] == "stand_still"
        without = dispatch(*words).document
        assert without["threads"][0]["frames"][0]["function"] != "stand_still"
    finally:
        hidden.rename(program)


def test_from_any_folder_through_a_link(plain: Plain, tmp_path: Path) -> None:
    link = tmp_path / "my dispatch"
    link.symlink_to(DISPATCH)
    outcome = run([link, "-p", str(plain.pid), "dispatch-info", "--json"], cwd=tmp_path)
    assert outcome.status == 0, outcome


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHOME"])
def test_the_users_python_settings_do_no_harm(plain: Plain, tmp_path: Path, name: str) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('the wrong argparse')")
    outcome = dispatch("-p", str(plain.pid), "dispatch-info", "--json", env={name: str(tmp_path)}, cwd=tmp_path)
    assert outcome.status == 0, outcome


@pytest.mark.parametrize("language", ["C", "POSIX", "de_DE.UTF-8"])
def test_any_language(plain: Plain, language: str) -> None:
    outcome = dispatch("-p", str(plain.pid), "dispatch-bt", env={"LC_ALL": language, "LANG": language})
    assert outcome.status == 0, outcome


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_any_python_from_3_9(plain: Plain, version: str) -> None:
    found = pythons.need(version)
    for debugger in DEBUGGERS:
        words = ["-p", str(plain.pid), "--debugger", debugger, "--json", "dispatch-bt"]
        assert dispatch(*words, env={"GDBEXT_PYTHON": found}).status == 0


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


# --- help and usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help(words: list[str]) -> None:
    outcome = dispatch(*words)
    assert outcome.status == 0
    for needed in ("-p", "-c", "--sysroot", "--debugger", "--timeout", "dispatch-bt", "dispatch-diagnose"):
        assert needed in outcome.stdout
    assert outcome.stderr == ""


def test_the_help_of_a_command_needs_no_target() -> None:
    outcome = dispatch("dispatch-bt", "--help")
    assert outcome.status == 0
    assert "usage: dispatch-bt" in outcome.stdout
    assert "--native" in outcome.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dispatch-bt"], "say what to look at"),
        (["-p", "1", "-c", "x", "dispatch-bt"], "only one of"),
        (["-p", "1", "--", "true"], "only one of"),
        (["dispatch-bt", "--"], "no PROGRAM"),
        (["-p", "abc"], "is not a process id"),
        (["-p", "-5"], "is not a process id"),
        (["-p"], "needs a value"),
        (["-p", "1", "dispatch-bs"], "no command 'dispatch-bs'"),
        (["-p", "1", "--debugger", "windbg"], "is not one of gdb, lldb, none"),
        (["-p", "1", "--timeout", "soon"], "is not a number of seconds"),
        (["-p", "1", "--timeout", "-1"], "greater than 0"),
        (["-p", "1", "--timeout", "inf"], "at most 1e+09"),
        (["-p", "1", "--timeout", "nan"], "greater than 0"),
        (["-c", "x", "--sysroot", "/nowhere"], "is not a folder"),
        (["-p", "1", "--sysroot", "/"], "for core dumps"),
        (["--debugger", "none", "dispatch-bt", "--", "true"], "without a debugger"),
    ],
)
def test_wrong_usage(words: list[str], said: str) -> None:
    outcome = dispatch(*words)
    assert outcome.status == 2, outcome
    assert said in outcome.stderr
    assert outcome.stdout == ""
    assert_error_document(dispatch("--json", *words), said, status=2)


def test_a_mistyped_command_names_the_nearest() -> None:
    assert "dispatch-bt" in dispatch("-p", "1", "dispatch-tb").stderr
    assert "did you mean" in dispatch("-p", "1", "dispatch-ino").stderr


@pytest.mark.parametrize("debugger", DEBUGGERS)
@pytest.mark.parametrize(
    ("words", "said"),
    [(["--bogus"], "--bogus"), (["--thread"], "expected one argument"), (["--all", "--thread", "1"], "not allowed")],
)
def test_wrong_arguments_of_a_command(plain: Plain, debugger: str, words: list[str], said: str) -> None:
    outcome = dispatch("-p", str(plain.pid), "--debugger", debugger, "dispatch-bt", *words)
    assert outcome.status == 2, outcome
    assert said in outcome.stderr
    assert "usage: dispatch-bt" in outcome.stderr
    assert outcome.stdout == ""


# --- targets that cannot be looked at ----------------------------------------------------------------------


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_no_such_process(debugger: str) -> None:
    document = assert_error_document(
        dispatch("-p", "1073741824", "--debugger", debugger, "--json", "dispatch-bt"), "no process 1073741824"
    )
    assert document["command"] == "dispatch-bt"
    plain_text = dispatch("-p", "1073741824", "--debugger", debugger, "dispatch-bt")
    assert (plain_text.status, plain_text.stdout) == (1, "")
    assert "why:" in plain_text.stderr
    assert "try:" in plain_text.stderr


def test_a_zombie() -> None:
    process = subprocess.Popen(["true"])
    wait_until(lambda: procfs.state(process.pid, process.pid) == "Z", "it has ended")
    assert_error_document(dispatch("-p", str(process.pid), "--json", "dispatch-bt"), "zombie")
    process.wait()


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_somebody_else_traces_it(plain: Plain, debugger: str) -> None:
    other = subprocess.Popen(
        ["gdb", "-nx", "-q", "-p", str(plain.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: set(plain.states()) == {"t"}, "the other gdb has attached")
        looked = dispatch("-p", str(plain.pid), "--debugger", debugger, "--json", "dispatch-diagnose")
        if debugger == "none":  # what that debugger has stopped can be read
            assert looked.document["verdict"]["kind"] == "stopped", looked
            assert f"{other.pid}" in looked.document["verdict"]["summary"]
            return
        document = assert_error_document(looked, f"process {other.pid} (gdb)")
        assert "source gdbext/init.py" in document["errors"][0]["help"]
    finally:
        other.communicate(b"detach\nquit\n", timeout=PATIENCE)


@pytest.mark.parametrize("debugger", DEBUGGERS)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"some text, no core", "not an ELF file"),
        (b"\x28\xb5\x2f\xfd" + bytes(50), "compressed with zstd"),
        (b"\x7fELF\x02\x01\x01", "truncated"),
        (None, "there is no file"),
    ],
)
def test_bad_cores(tmp_path: Path, debugger: str, content: bytes | None, said: str) -> None:
    path = tmp_path / "bad core"
    if content is not None:
        path.write_bytes(content)
    unpacks = debugger == "none" and "compressed" in said  # gdb takes no core that has to be unpacked
    outcome = dispatch("-c", path, "--debugger", debugger, "--json", "dispatch-bt")
    assert_error_document(outcome, "cannot be unpacked" if unpacks else said)


def test_a_program_is_no_core(program: Path) -> None:
    assert_error_document(dispatch("-c", program, "--json", "dispatch-bt"), "not a core dump")


def test_a_truncated_core(core: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.write_bytes(core.read_bytes()[: core.stat().st_size // 2])
    for debugger in DEBUGGERS:
        outcome = dispatch("-c", cut, "--debugger", debugger, "--json", "dispatch-bt")
        document = assert_error_document(outcome, "describes no thread")
        assert "truncated" in document["errors"][0]["why"]


def test_without_gdb(plain: Plain, tmp_path: Path) -> None:
    for name in ("sh", "readlink"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    missing = {"PATH": str(tmp_path)}
    document = assert_error_document(
        dispatch("-p", str(plain.pid), "--debugger", "gdb", "--json", "dispatch-bt", env=missing), "gdb was not found"
    )
    assert "apt-get install gdb" in document["errors"][0]["help"]
    assert "--debugger none" in document["errors"][0]["help"]
    assert dispatch("-p", str(plain.pid), "--debugger", "none", "dispatch-bt", env=missing).status == 0


def test_a_gdb_that_gives_no_result(plain: Plain, tmp_path: Path) -> None:
    fake = tmp_path / "gdb"
    fake.write_text("#!/bin/sh\necho 'Python scripting is not supported in this copy of GDB.' >&2\n")
    fake.chmod(0o755)
    document = assert_error_document(
        dispatch("-p", str(plain.pid), "--debugger", "gdb", "--json", "dispatch-bt", env={"GDB": str(fake)}),
        "ended with status 0",
    )
    assert "Python scripting is not supported" in document["errors"][0]["why"]


def test_a_gdb_that_is_no_program(plain: Plain, tmp_path: Path) -> None:
    fake = tmp_path / "gdb"
    fake.write_bytes(b"\x7fELF, but no more")
    fake.chmod(0o755)
    outcome = dispatch("-p", str(plain.pid), "--debugger", "gdb", "--json", "dispatch-bt", env={"GDB": str(fake)})
    assert_error_document(outcome, "gdb cannot be started")
    assert "Traceback" not in outcome.stderr


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


def test_it_costs_no_debugger_to_refuse(plain: Plain, tmp_path: Path) -> None:
    """What /proc tells is told before gdb starts."""
    fake = tmp_path / "gdb"
    fake.write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\n")
    fake.chmod(0o755)
    dispatch("-p", "1073741824", "--debugger", "gdb", "dispatch-bt", env={"GDB": str(fake)})
    assert not (tmp_path / "started").exists()
    dispatch("-p", str(plain.pid), "--debugger", "gdb", "dispatch-bt", env={"GDB": str(fake)})
    assert (tmp_path / "started").exists()


# --- the process goes on -----------------------------------------------------------------------------------


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
    wrapper = tmp_path / "gdb"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("gdb")} -iex "source {tmp_path}/freeze.py" "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def start(plain: Plain, gdb: Path, *words: str) -> tuple[subprocess.Popen[str], int]:
    """scripts/dispatch in the background, and its gdb, which has attached and was frozen just then."""
    process = subprocess.Popen(
        [str(DISPATCH), "-p", str(plain.pid), "--debugger", "gdb", "--json", *words, "dispatch-bt"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "GDB": str(gdb)},
    )

    def frozen() -> int:
        assert process.poll() is None, process.communicate()
        tracer = int(procfs.status(plain.pid)["TracerPid"])
        return tracer if tracer and procfs.state(tracer, tracer) == "T" else 0

    return process, wait_until(frozen, "gdb has attached")


def ended(pid: int) -> bool:
    return not procfs.alive(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_when_we_are_interrupted(plain: Plain, freezing: Path, number: int) -> None:
    process, gdb = start(plain, freezing)
    os.kill(gdb, signal.SIGCONT)
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=PATIENCE)
    assert ended(gdb)
    if process.returncode:  # else it had finished before the signal came
        assert json.loads(stdout)["errors"][0]["what"] == "interrupted"
        assert process.returncode == 1


def test_when_we_are_interrupted_and_gdb_does_not_answer(plain: Plain, freezing: Path) -> None:
    process, gdb = start(plain, freezing)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=PATIENCE)
    assert ended(gdb)
    assert json.loads(stdout)["errors"][0]["what"] == "interrupted"


def test_when_gdb_is_killed(plain: Plain, freezing: Path) -> None:
    process, gdb = start(plain, freezing)
    os.kill(gdb, signal.SIGKILL)
    stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "killed by signal 9" in json.loads(stdout)["errors"][0]["what"]


def test_when_gdb_is_killed_and_leaves_a_child(plain: Plain, tmp_path: Path) -> None:
    """gdb forks one to try the kernel's ptrace, which has the pipe of the report, too."""
    fake = tmp_path / "gdb"
    fake.write_text(f"#!/bin/sh\nsleep 1000 & echo $! > '{tmp_path}/child'\nkill -9 $$\n")
    fake.chmod(0o755)
    outcome = dispatch("-p", str(plain.pid), "--debugger", "gdb", "--json", "dispatch-bt", env={"GDB": str(fake)})
    assert_error_document(outcome, "was killed by signal 9")
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: ended(child), "nothing is left of it")


def test_when_we_are_killed(plain: Plain, freezing: Path) -> None:
    process, gdb = start(plain, freezing)
    os.kill(gdb, signal.SIGCONT)  # first: the kernel sends SIGHUP to a stopped group whose parent goes
    process.kill()
    process.communicate(timeout=PATIENCE)
    wait_until(lambda: ended(gdb), "gdb ends by itself")


def test_when_the_time_is_up(plain: Plain, freezing: Path) -> None:
    process, gdb = start(plain, freezing, "--timeout", "4")
    stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert json.loads(stdout)["errors"][0]["what"] == "no report within 4 s"
    assert ended(gdb)


def test_when_the_time_is_up_without_debugger(plain: Plain) -> None:
    words = ["-p", str(plain.pid), "--debugger", "none", "--json", "--timeout", "0.001", "dispatch-bt", "--all"]
    assert_error_document(dispatch(*words), "no report within 0.001 s")


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_a_stopped_process_stays_stopped(program: Path, debugger: str) -> None:
    with running(program, "2") as plain:
        os.kill(plain.pid, signal.SIGSTOP)
        wait_until(lambda: set(plain.states()) == {"T"}, "it is stopped")
        assert dispatch("-p", str(plain.pid), "--debugger", debugger, "dispatch-bt", "--all").status == 0
        wait_until(lambda: set(plain.states()) == {"T"}, "it is stopped again")
        os.kill(plain.pid, signal.SIGCONT)
        wait_until(plain.is_untouched, "it goes on")


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_the_process_ends_meanwhile(program: Path, debugger: str) -> None:
    """Killed at all kinds of moments: always a document, never a hang, never a traceback."""
    for delay in (0.0, 0.02, 0.05, 0.08, 0.1, 0.15):
        with running(program, "50") as plain:
            killer = subprocess.Popen(["sh", "-c", f"sleep {delay}; kill -9 {plain.pid}"])
            outcome = dispatch("-p", str(plain.pid), "--debugger", debugger, "--json", "dispatch-bt", "--all")
            killer.wait()
        assert outcome.status in (0, 1), outcome
        assert outcome.document["schema"] == "gdbext/1"
        assert not any("internal error" in error["what"] for error in outcome.document["errors"]), outcome


def test_output_that_nobody_reads(plain: Plain) -> None:
    words = f"{DISPATCH} -p {plain.pid} dispatch-bt --all --native | head -c 1"
    done = run(["bash", "-c", f"set -o pipefail; {words}"])
    assert "Traceback" not in done.stderr
    full = run(["bash", "-c", f"{DISPATCH} -p {plain.pid} dispatch-bt > /dev/full"])
    assert full.status == 1
    assert "No space left" in full.stderr


# --- a program of its own ----------------------------------------------------------------------------------


def test_a_program_that_crashes(program: Path) -> None:
    outcome = dispatch("dispatch-bt", "--json", "--", program, "2", "crash")
    assert outcome.status == 0, outcome
    (thread,) = outcome.document["threads"]
    assert thread["signal"] == "SIGSEGV"
    assert '"magic"' in outcome.stderr  # what the program prints is not in the report


def test_a_crash_outside_of_the_dispatcher_is_shown_with_ten_frames(tmp_path: Path) -> None:
    script = tmp_path / "crash.py"
    script.write_text("import ctypes\ndef read(n):\n    ctypes.string_at(n)\nread(8)\n")
    lines = dispatch("--", sys.executable, str(script)).stdout.splitlines()
    assert re.fullmatch(r"\S+ \(tid \d+\) crashed: SIGSEGV at 0x8: a null pointer plus 8\.", lines[0])
    frames = [line for line in lines if line.startswith("#")]
    assert len(frames) == 10
    assert "string_at" in "".join(frames)
    assert f"      from {script}:3 (read)" in lines
    again = f"dispatch-bt --native -- {sys.executable} {script}"
    assert lines[lines.index("What to try next") + 1].endswith(
        f"  - All native frames of the crash: {DISPATCH} {again}"
    )
    assert not any("gcore" in line for line in lines)


def test_a_program_that_ends() -> None:
    outcome = dispatch("dispatch-bt", "--json", "--", "/bin/sh", "-c", "echo said; exit 3")
    assert outcome.status == 3
    assert outcome.stderr.splitlines() == [
        "said",
        "dispatch: the program ended by itself with exit status 3: it neither crashed nor hung",
    ]
    assert "status 3" in outcome.document["errors"][0]["what"]


def test_a_program_that_hangs(program: Path) -> None:
    outcome = dispatch("--timeout", "1.5", "dispatch-bt", "--all", "--json", "--", program, "2")
    assert outcome.status == 0, outcome
    assert len(outcome.document["threads"]) == 3
    pid = outcome.document["target"]["pid"]
    assert ended(pid)


def test_a_program_that_is_not_there() -> None:
    outcome = dispatch("dispatch-bt", "--json", "--", "/nowhere/program")
    assert outcome.status == 1, outcome
    assert re.search("/nowhere/program|not.*run", outcome.document["errors"][0]["what"])


@pytest.mark.parametrize(
    "form", ["{exe} {pid}", "{exe} -c {core}", "{exe} {core}", "-q -c {core} {exe}", "{exe} {core} bt"]
)
def test_what_gdb_users_type_examines_and_starts_nothing(form: str, tmp_path: Path) -> None:
    program, started = tmp_path / "train", tmp_path / "started"
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    sleeper = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
    try:
        words = form.format(exe=program, pid=sleeper.pid, core=tmp_path / "core.7").split()
        done = run([DISPATCH, *words])
    finally:
        sleeper.kill()
        sleeper.wait()
    assert not started.exists()
    if "{pid}" in form:
        assert done.status == 0, done
        assert f"warning: process {sleeper.pid} runs /usr/bin/sleep, not {program}" in done.stderr
    else:
        assert (done.status, "core.7" in done.stderr) == (1, True), done


@pytest.mark.parametrize(
    "form", ["bt", "coredumpctl:7", "{pipe}", "{empty}", "-p7", "--resume={core}", "{core} bt --args"]
)
def test_no_doubtful_word_starts_a_program(form: str, core: Path, tmp_path: Path) -> None:
    program, started, pipe, empty = (tmp_path / name for name in ("train", "started", "pipe", "empty"))
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    os.mkfifo(pipe)
    empty.touch()
    words = [word.format(pipe=pipe, empty=empty, core=core) for word in form.split()]
    done = dispatch(program, *words)
    assert not started.exists()
    assert done.status == (0 if form.startswith("{core}") else 1 if form[0] in "{c" else 2), done
    dispatch("--", program, *words)
    assert started.exists(), "the program tells that it was started"


@pytest.mark.parametrize("way", ["none", "gdb", "packed"])
def test_an_executable_that_did_not_write_the_core(way: str, core: Path, program: Path, tmp_path: Path) -> None:
    """Build-ids decide, not names; -q does not hide it, as in gdb; nothing is said of the right one, or of a copy."""
    named = core
    if way == "packed":
        named = tmp_path / "core.gz"
        named.write_bytes(gzip.compress(core.read_bytes(), 1))
    debugger = ("--debugger", "gdb" if way == "gdb" else "none")
    copy, other = tmp_path / "renamed", tmp_path / program.name
    shutil.copy(program, copy)
    source = tmp_path / "other.c"
    source.write_text("int main(void) { return 0; }")
    run(["gcc", "-Wl,--build-id", "-o", other, source])
    for right in (program, copy):
        assert dispatch(*debugger, right, named, "dispatch-info").stderr == ""
    for wrong, said in ((other, f"not {other}"), (tmp_path / "gone", f"there is no file {tmp_path / 'gone'}")):
        done = dispatch(*debugger, "-q", "-c", named, wrong, "dispatch-info")
        assert done.status == 0, done
        assert said in done.stderr
        assert f"was written by {program}" in done.stderr
