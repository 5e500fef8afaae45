"""A process that is just ending has no program any more, and is no kernel thread for that."""

from __future__ import annotations

import errno
import os

import pytest

from gdbext.engine.targets.live import proc_checks
from gdbext.errors import TargetGone
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
        with pytest.raises(TargetGone, match="just ending"):
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
