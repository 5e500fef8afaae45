"""Whatever ends a live command, the examined process continues: untraced, not stopped, with the code of its files."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.installed import gdbs, lldbs
from support.programs import harness, procfs
from support.programs.code_bytes import changed_text
from support.programs.command_ends import ENDS, EndableCommand, by_signal, signal_debuggers
from support.programs.harness import DISPATCH, ROOT, Inferior, some, wait_until
from support.programs.signal_burst import BURST

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("end_requests")]

OPERATOR = "aten::add.Tensor"
TRACE = ("dispatch-trace", OPERATOR, "--engine", "breakpoints")
VALUES = ("dispatch-values", "print", OPERATOR, "--engine", "breakpoints")
BREAK = ("dispatch-break", "call", OPERATOR, "--engine", "breakpoints", "--continue")


@pytest.fixture(scope="module")
def job() -> Iterator[Inferior]:
    with harness.started("debugged_job") as running:
        yield running


class Command:
    def __init__(self, job: Inferior, debugger: str, path: str, words: tuple[str, ...], terminal: bool) -> None:
        ours, theirs = pty.openpty() if terminal else os.pipe()
        self.reader = ours
        self.process = subprocess.Popen(
            [DISPATCH, "--debugger", debugger, "-p", str(job.pid), *words],
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs if terminal else subprocess.DEVNULL,
            env=os.environ | {debugger.upper(): path},
            start_new_session=True,
        )
        os.close(theirs)
        wait_until(lambda: os.read(ours, 1) != b"", "the command shows that the process runs")
        self.debuggers = procfs.descendants(self.process.pid)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.reader)
        self.process.kill()
        self.process.wait()


def terminate_all(command: EndableCommand) -> None:
    """As a scheduler or systemd does: each process of the command gets the signal."""
    command.process.terminate()
    signal_debuggers(command, signal.SIGTERM)


def terminate_debugger(command: EndableCommand) -> None:
    os.kill(command.debuggers[0], signal.SIGTERM)


ALL_ENDS = {
    **ENDS,
    "INT": by_signal(signal.SIGINT),
    "terminated-debugger": terminate_debugger,
    "terminated-group": terminate_all,
}


def is_over(pid: int) -> bool:
    return not procfs.alive(pid)


def check_unharmed(job: Inferior) -> None:
    wait_until(lambda: procfs.status(job.pid)["TracerPid"] == "0", "the process is untraced")
    wait_until(lambda: not changed_text(job.pid, "libtorch_cpu"), "its code is that of its files")
    counts = Path(job.truth["counts"])
    before = counts.read_bytes()[:16]
    wait_until(
        lambda: all(counts.read_bytes()[at : at + 8] != before[at : at + 8] for at in (0, 8)), "both threads continue"
    )


@pytest.mark.parametrize("end", ALL_ENDS)
@pytest.mark.parametrize("gdb", gdbs.parameters())
@pytest.mark.gdb
def test_gdb_detaches(job: Inferior, gdb: str, end: str) -> None:
    check(job, "gdb", gdbs.executable(gdb), TRACE, end)


@pytest.mark.parametrize("end", ["TERM", "killed-launcher"])
@pytest.mark.parametrize("words", [VALUES, BREAK], ids=["values", "break"])
@pytest.mark.gdb
def test_so_do_the_other_commands(job: Inferior, words: tuple[str, ...], end: str) -> None:
    check(job, "gdb", gdbs.executable("gdb"), words, end)


@pytest.mark.parametrize("end", ALL_ENDS)
@pytest.mark.parametrize("lldb", lldbs.parameters())
def test_lldb_detaches(job: Inferior, lldb: str, end: str) -> None:
    check(job, "lldb", lldbs.executable(lldb), TRACE, end)


@pytest.mark.parametrize("debugger", [*gdbs.parameters(), *lldbs.parameters()])
def test_no_debugger_samples_on_after_its_launcher(job: Inferior, debugger: str) -> None:
    name = "lldb" if "lldb" in debugger else "gdb"
    path = gdbs.executable(debugger) if name == "gdb" else lldbs.executable(debugger)
    words = [DISPATCH, "--debugger", name, "-p", str(job.pid), "dispatch-diagnose", "--samples", "1000"]
    launcher = subprocess.Popen(words, env=os.environ | {name.upper(): path}, start_new_session=True)
    wait_until(lambda: procfs.status(job.pid)["TracerPid"] != "0", "it looks at the process")
    debuggers = procfs.descendants(launcher.pid)
    launcher.kill()
    launcher.wait()
    wait_until(lambda: all(is_over(pid) for pid in debuggers), "no debugger stays behind")
    check_unharmed(job)


@pytest.mark.parametrize("gdb", gdbs.parameters())
@pytest.mark.gdb
def test_signals_that_come_at_once_do_not_kill_gdb(tmp_path: Path, gdb: str) -> None:
    """SIGTERM, the SIGINT that follows it, and SIGCHLD: gdb 18 died, and its breakpoints killed the process."""
    script = tmp_path / "burst.py"
    found = f"import sys\nsys.path.append({str(ROOT)!r})\n"
    script.write_text(f"{found}from gdbext.live.host import EndRequests\nEndRequests().hold()\n{BURST}")
    words = [gdbs.executable(gdb), "-nx", "-batch", "-ex", f"source {script}"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "handled" in done.stdout, (done.returncode, done.stderr)


def check(job: Inferior, debugger: str, path: str, words: tuple[str, ...], end: str) -> None:
    command = Command(job, debugger, path, words, end == "closed-terminal")
    try:
        ALL_ENDS[end](command)
        wait_until(lambda: command.process.poll() is not None, "the command has ended")
        wait_until(lambda: all(is_over(pid) for pid in command.debuggers), "no debugger stays behind")
    finally:
        command.close()
    check_unharmed(job)


def test_a_terminated_trace_still_reports(job: Inferior) -> None:
    """`timeout 60 dispatch-trace …` is to show what it has traced."""
    gdbs.executable("gdb")
    words = [DISPATCH, "--debugger", "gdb", "-p", str(job.pid), *TRACE]
    traced = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    first = some(traced.stdout).readline()
    traced.terminate()
    shown = (first + some(traced.stdout).read()).decode()
    assert traced.wait() == 0, shown
    assert f"op=[{OPERATOR}]" in shown
    check_unharmed(job)
