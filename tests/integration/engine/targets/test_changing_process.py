"""Processes that become something else while they are looked at, and processes in namespaces of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.live.snapshot_target import brief_stop
from gdbext.engine.targets.live.stop_copy import StopCopy
from gdbext.errors import TargetGone
from gdbext.tools import running
from support.installed.machine import own_libc
from support.programs import harness, native_build, procfs
from support.programs.harness import some

WAITS = "import ctypes, os, sys\nos.write(1, b'\\n')\nsys.stdin.readline()\n"


def waiting(then: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return harness.ready([sys.executable, "-c", f"{WAITS}{then}"], bufsize=0)


def go_on(process: subprocess.Popen[bytes]) -> None:
    some(process.stdin).write(b"\n")


@pytest.mark.parametrize("seem_to_move", [False, True])
def test_a_library_is_loaded_between_the_list_of_files_and_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seem_to_move: bool
) -> None:
    """On a busy machine threads seem to have moved that only took their time to fall asleep again."""
    if seem_to_move:
        monkeypatch.setattr(StopCopy, "has_moved", lambda *_: True)
    library = tmp_path / "libtorch_cpu.so"
    shutil.copy(Path(own_libc()).with_name("libm.so.6"), library)
    with waiting(f"ctypes.CDLL({str(library)!r})\nos.write(1, b'y')\nsys.stdin.readline()") as process:
        target = brief_stop(process.pid)
        session = Session(target)
        assert not session.has_torch
        go_on(process)
        assert some(process.stdout).read(1) == b"y"
        harness.wait_until(lambda: calls(process.pid, "read"), "it reads again")
        document = json.loads(running.execute("dispatch-bt", ["--all", "--json"], lambda: session).output)
        assert document["target"]["torch"] is not None, "it was looked at once more"
        assert [each["function"] for each in document["threads"][0]["python_frames"]] == ["<module>"]
        assert target.moment.stops == 2
        assert not target.moment.retake()
        target.close()


def test_another_program_is_executed_meanwhile() -> None:
    with waiting("os.execv('/bin/sleep', ['sleep', '1000'])") as process:
        target = brief_stop(process.pid)
        session = Session(target)
        go_on(process)
        harness.wait_until(lambda: Path(f"/proc/{process.pid}/exe").readlink().name == "sleep", "it executes sleep")
        with pytest.raises(TargetGone, match="executed another program"):
            target.memory.sample(session.modules.modules[0].start, 8)
        outcome = running.execute("dispatch-diagnose", ["--json"], lambda: session)
        assert "executed another program" in outcome.output + outcome.error
        target.close()
        harness.wait_until(lambda: calls(process.pid, "sleep", RESTART_SYSCALL), "it has started, and sleeps")
        again = running.execute("dispatch-diagnose", ["--json"], lambda: Session(brief_stop(process.pid)))
        assert json.loads(again.output)["verdict"]["kind"] == "idle", "what it is now can be examined"


RESTART_SYSCALL = 219
"""What a sleep goes on with that a stop has interrupted (arch/x86/entry/syscalls/syscall_64.tbl)."""


def calls(pid: int, name: str, *more: int) -> bool:
    number = procfs.syscall(pid, pid)[0]
    return number.isdigit() and int(number) in {*procfs.SYSCALLS[name], *more}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[int]:
    """The pid, as we see it, of a process in namespaces of its own, with a deadlock of two native mutexes."""
    unshare = ["unshare", "-Urpmf", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    script, ready = harness.INFERIORS / "more_native.py", tmp_path / "truth.json"
    env = {**os.environ, "GDBEXT_NATIVE": native_build.build_for(script), "GDBEXT_READY": str(ready)}
    command = [*unshare, sys.executable, str(script), "priority-inheritance"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as process:
        try:
            harness.wait_until(ready.exists, "the program is ready")
            (pid,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
            harness.wait_until(lambda: waiters(pid) == 2, "two threads wait")
            yield pid
        finally:
            process.kill()


def waiters(pid: int) -> int:
    return sum(procfs.syscall(pid, tid)[0] == "202" for tid in procfs.threads(pid))


@pytest.mark.compiler
def test_a_process_in_other_namespaces(elsewhere: int) -> None:
    """Locks record thread ids of the process's own namespace; what is reported are ours."""
    command = [harness.DISPATCH, "--debugger", "none", "-p", str(elsewhere), "--json", "dispatch-diagnose"]
    report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert report["verdict"]["kind"] == "deadlock"
    threads = {thread["tid"]: thread for thread in report["threads"]}
    assert set(threads) == {int(each.name) for each in Path(f"/proc/{elsewhere}/task").iterdir()}
    first, second = report["verdict"]["threads"]
    assert threads[first]["wait"]["owner"]["tid"] == second
    assert threads[second]["wait"]["owner"]["tid"] == first
    assert threads[elsewhere]["python_name"] == "MainThread"
    assert all(thread["python_frames"] for thread in threads.values())
