"""A process that is just ending has no program any more, and is no kernel thread for that."""

from __future__ import annotations

import errno
import os

import pytest

from gdbext.engine.targets.live import proc_checks
from gdbext.engine.targets.live.local_process import read_file
from gdbext.engine.targets.live.unstopped import UnstoppedProcess
from gdbext.errors import TargetGone
from gdbext.tools import table
from gdbext.tools.probes.bpf.bpf_kernel import Circumstances, refused
from support.programs import procfs
from support.programs.harness import wait_until


def test_it_is_said_to_be_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    try:
        wait_until(lambda: procfs.state(pid, pid) == "Z", "the child has ended")
        monkeypatch.setattr(proc_checks, "check_exists", lambda _: None)  # asked just before its state changes
        with pytest.raises(TargetGone, match=f"^process {pid} has ended; "):
            proc_checks.check_architecture(pid)
    finally:
        os.waitpid(pid, 0)


def test_a_kernel_thread_is_told_by_its_flags() -> None:
    assert not proc_checks._is_kernel_thread(os.getpid())
    if "kthread" in procfs.status(2).get("Name", ""):
        assert proc_checks._is_kernel_thread(2)


def test_no_probe_of_a_process_that_has_ended() -> None:
    error = refused("no probe", OSError(errno.ESRCH, "No such process"), Circumstances("6.18.0", 0, False, False))
    assert error.why == "the process has ended meanwhile"


def test_one_wording_wherever_it_is_noticed() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    said = set()
    for look in (proc_checks.open_memory, lambda pid: read_file(pid, "maps"), unstopped_threads):
        with pytest.raises(TargetGone) as caught:
            look(pid)
        said.add(table.error_text(caught.value))
    assert said == {f"process {pid} has ended; take a core of the next one (gcore PID)"}


def unstopped_threads(pid: int) -> None:
    target = object.__new__(UnstoppedProcess)
    target.pid, target._threads = pid, None
    target.threads()
