"""Processes that the kernel keeps: pages that do not come, a file system that does not answer, frozen groups, stops.

Each is made as far as this machine permits (root, /dev/fuse, userfaultfd, a freezer); what cannot be made is skipped.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gdbext.diagnosis.commands.diagnose import _examined
from gdbext.engine.targets.system.peer import ChildProcess
from gdbext.errors import TargetError
from gdbext.hosts.cli.debugger_runner import DebuggerProcess
from gdbext.tools.watch.progress_watch import uses_torch
from support.programs import procfs
from support.programs.harness import DISPATCH, HarnessError, Inferior, ready, run, some, started, wait_until

SOURCE = Path(__file__).resolve().parents[2] / "inferiors" / "native" / "fuse_server.c"
SLEEPS = set(map(str, procfs.SYSCALLS["sleep"]))
PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 16, 17, 0x4206
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NO_WAITS = ("sleeps", "runs")
"""Programs that are as they should be from the beginning."""
GROUPS = (
    ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
    ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
    ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
)
"""Freezers of the older hierarchy and of the unified one: folder, file, frozen, thawed."""


class SilentMount:
    """A FUSE file system that does not answer reads: ``file`` is in it, process ``server`` serves it."""

    def __init__(self, program: Path, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self.file = place / "page"
        self._process = subprocess.Popen([program, place], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.server = self._process.pid
        if "mounted" not in some(self._process.stdout).readline():
            _, why = self._process.communicate()
            pytest.skip(f"no FUSE file system can be mounted here: {why.strip()}")

    def end(self) -> None:
        """Fail all requests: not even SIGKILL ends a process that waits for one."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
            run(["umount", "-l", str(self.file.parent)])


@pytest.fixture(scope="module")
def fuse_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("fuse") / "fuse_server"
    assert run(["gcc", "-O1", str(SOURCE), "-o", str(program)]).status == 0
    return program


@pytest.fixture
def silent(fuse_server: Path, tmp_path: Path) -> Iterator[SilentMount]:
    mount = SilentMount(fuse_server, tmp_path / "mount")
    yield mount
    mount.end()


@contextlib.contextmanager
def kernel_waits(scenario: str, mount: SilentMount | None = None) -> Iterator[Inferior]:
    """The program, once its main thread has slept in the kernel for longer than a disk takes. The mount ends before the
    program that waits for it."""
    try:
        with started("kernel-waits", scenario, *([str(mount.file)] if mount else [])) as found, ExitStack() as stack:
            if mount is not None:
                stack.callback(mount.end)
            if scenario not in NO_WAITS:
                wait_until(procfs.sleeps_on(found.pid, found.pid), "it sleeps on in the kernel")
            yield found
    except HarnessError as error:
        if "no userfaultfd" in str(error):
            pytest.skip("userfaultfd is not permitted here")
        raise


def diagnose(target: Inferior) -> dict:
    """A report by the tool without a debugger, which must answer in time and leave nothing attached."""
    report: dict = target.dispatch("dispatch-diagnose", debugger="none").document
    assert procfs.status(target.pid)["TracerPid"] == "0"
    return report


def main_wait(report: dict, target: Inferior) -> dict:
    return next(thread["wait"] for thread in report["threads"] if thread["tid"] == target.pid)


def test_a_page_that_userfaultfd_does_not_give(tmp_path: Path) -> None:
    with kernel_waits("userfault") as target:
        wait_until(
            lambda: procfs.syscall(target.pid, target.tid("wants-gil"))[0] not in SLEEPS, "a thread wants the GIL"
        )
        recording = tmp_path / "userfault.rec"
        recorded = run([DISPATCH, "-p", str(target.pid), "--record", str(recording), "--json"]).document
        replayed = run([DISPATCH, "-r", str(recording), "--json"]).document
        wait_until(procfs.sleeps_on(target.pid, target.pid), "it sleeps on after that look")
        for report in (recorded, replayed, diagnose(target)):
            verdict = report["verdict"]
            assert (verdict["kind"], verdict["threads"][0]) == ("kernel-wait", target.pid)
            assert "userfaultfd" in verdict["summary"]
            assert target.tid("wants-gil") in verdict["threads"]
            assert main_wait(report, target)["kind"] == "page"


@pytest.mark.parametrize(("scenario", "kind"), [("page", "page"), ("read", "io")])
def test_a_file_system_that_does_not_answer(scenario: str, kind: str, silent: SilentMount) -> None:
    with kernel_waits(scenario, silent) as target:
        report = diagnose(target)
        assert report["verdict"]["kind"] == "kernel-wait", report["verdict"]
        for words in (str(silent.file), "fuse.silent", f"process {silent.server} "):
            assert words in report["verdict"]["summary"]
        assert main_wait(report, target)["kind"] == kind


def test_memory_that_nobody_may_read(silent: SilentMount) -> None:
    """Even ps(1) hangs on this one; a look leaves nobody of ours behind, and no debugger is started."""
    with kernel_waits("mmap", silent) as target:
        report = diagnose(target)
        verdict = report["verdict"]
        assert (verdict["kind"], verdict["threads"]) == ("kernel-wait", [target.pid])
        assert f"waits in mmap ({silent.file}" in verdict["summary"]
        assert f"process {silent.server} " in verdict["summary"]
        assert any("does not let any process read" in error["what"] for error in report["errors"])
        refused = target.dispatch("dispatch-diagnose", debugger="gdb", check=False)
        assert refused.status == 1
        assert "cannot be stopped" in refused.document["errors"][0]["what"]
        _others_answer_as_well(target, silent)


def _others_answer_as_well(target: Inferior, silent: SilentMount) -> None:
    """A parent that looks at its children, the ranks of a job, a debugger that is attached all the same."""
    child = _examined(ChildProcess(target.pid, "python"), None)
    assert "the kernel does not let any process read it" in child.summary
    ranks = run([DISPATCH, "ranks", "-p", str(target.pid), "--json"]).document
    (report,) = ranks["reports"]
    assert report["kind"] == "kernel-wait", report
    assert str(silent.file) in report["summary"]
    assert not uses_torch(target.pid)
    debugger = DebuggerProcess("gdb", ["/bin/sleep", "60"], dict, os.pipe()[0], -1, target.pid, False, False)
    with pytest.raises(TargetError, match="cannot be stopped"):
        debugger.result(None, "process")
    handlers = [signal.getsignal(number) for number in ENDING]
    debugger.end()
    assert [signal.getsignal(number) for number in ENDING] == handlers
    assert procfs.status(target.pid)["TracerPid"] == "0"


@pytest.mark.gdb
def test_sources_whose_server_does_not_answer_any_more(fuse_server: Path, tmp_path: Path) -> None:
    """The folder of a program is covered by such a file system: its lines are missing, and nothing else."""
    program = tmp_path / "mount" / "program.py"
    program.parent.mkdir()
    program.write_text(
        "import threading\nlock = threading.Lock()\nlock.acquire()\nprint(1, flush=True)\nlock.acquire()\n"
    )
    with ExitStack() as stack:
        process = stack.enter_context(ready([sys.executable, program], cwd="/"))
        stack.callback(SilentMount(fuse_server, program.parent).end)
        for debugger in ("none", "gdb"):
            report = run([DISPATCH, "-p", str(process.pid), "--debugger", debugger, "--json"]).document
            assert report["verdict"]["kind"] == "self-deadlock", report["verdict"]
            assert str(program) in json.dumps(report["threads"])


def test_a_child_that_cannot_be_executed(silent: SilentMount) -> None:
    with kernel_waits("exec", silent) as target:
        verdict = diagnose(target)["verdict"]
        child = Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().strip()
        assert verdict["kind"] == "kernel-wait", verdict
        assert f"child process {child} " in verdict["summary"]
        assert "execve" in verdict["summary"]


def test_pages_that_come_are_no_hang() -> None:
    with started("kernel-waits", "served") as target:
        assert diagnose(target)["verdict"]["kind"] in ("idle", "busy")


def test_a_read_from_the_background() -> None:
    with kernel_waits("background") as target:
        verdict = diagnose(target)["verdict"]
        assert verdict["kind"] == "stopped"
        assert "SIGTTIN" in verdict["summary"]
        assert target.truth["terminal"] in verdict["summary"]


@contextlib.contextmanager
def frozen(pid: int, is_unified: bool) -> Iterator[str]:
    name = f"gdbext-test-{os.getpid()}"
    for base, file, on, off in GROUPS[1:] if is_unified else GROUPS[:1]:
        folder = Path(base, name)
        try:
            folder.mkdir()
            (folder / "cgroup.procs").write_text(str(pid))
            (folder / file).write_text(on)
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            continue
        try:
            told = folder / ("freezer.state" if "state" in file else "cgroup.events")
            wait_until(lambda told=told: {"FROZEN", "frozen 1"} & set(told.read_text().splitlines()), "it is frozen")
            yield name
        finally:
            (folder / file).write_text(off)
            Path(base, "cgroup.procs").write_text(str(pid))
            wait_until(lambda folder=folder: not (folder / "cgroup.procs").read_text(), "the group is empty")
            folder.rmdir()
        return
    pytest.skip("no control group can be frozen here")


@pytest.mark.parametrize(("scenario", "is_unified"), [("runs", False), ("sleeps", True)], ids=["v1", "v2"])
def test_a_frozen_group(scenario: str, is_unified: bool) -> None:
    """The one with the GIL in hand, which another thread waits for, was running."""
    with kernel_waits(scenario) as target, frozen(target.pid, is_unified) as group:
        wait_until(procfs.sleeps_on(target.pid, target.pid), "it has been frozen for longer than a disk takes")
        report = diagnose(target)
        assert report["verdict"]["kind"] == "stopped", report["verdict"]
        assert f"/{group}" in report["verdict"]["summary"]
        assert "uninterruptible" not in json.dumps(report["findings"])
        refused = target.dispatch("dispatch-diagnose", debugger="gdb", check=False)
        assert "cannot be stopped" in refused.document["errors"][0]["what"]
        assert procfs.status(target.pid)["TracerPid"] == "0"


def test_a_process_that_another_tracer_has_stopped(tmp_path: Path) -> None:
    """It is read as it stands, and its tracer is named; where it lets the process run, as its threads sleep."""
    with kernel_waits("sleeps") as target:
        wait_until(lambda: procfs.syscall(target.pid, target.pid)[0] in SLEEPS, "it sleeps")
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = [ctypes.c_long] * 4
        assert ptrace(PTRACE_ATTACH, target.pid, 0, 0) == 0
        os.waitpid(target.pid, 0)
        recording = str(tmp_path / "held.rec")
        try:
            report = target.dispatch("--record", recording, "dispatch-diagnose", debugger="none").document
        finally:
            ptrace(PTRACE_DETACH, target.pid, 0, 0)
        assert ptrace(PTRACE_SEIZE, target.pid, 0, 0) == 0
        let_run = target.dispatch("dispatch-diagnose", debugger="none").document
        os.kill(target.pid, signal.SIGKILL)  # who is traced stops once more then
    for told in (report, run([DISPATCH, "-r", recording, "--json"]).document):
        assert told["verdict"]["kind"] == "stopped", told["verdict"]
        assert f"process {os.getpid()} " in told["verdict"]["summary"]
    assert let_run["verdict"]["kind"] == "idle", let_run["verdict"]
    assert report["threads"][0]["frame_count"] == let_run["threads"][0]["frame_count"] > 1


def test_a_main_thread_that_has_left() -> None:
    """The kernel shows the process as a zombie without memory, arguments and environment; its threads have them."""
    with started("kernel-waits", "leaves") as target:
        wait_until(lambda: procfs.state(target.pid, target.pid) == "Z", "the main thread has left")
        verdict = diagnose(target)["verdict"]
        assert verdict["kind"] == "blocked", verdict
        assert verdict["summary"].startswith("worker (tid ")
