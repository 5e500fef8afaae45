"""What is said when the memory of a process is gone."""

from __future__ import annotations

import os

import pytest

from gdbext.engine.targets.live.local_process import read_memory
from gdbext.errors import TargetGone


@pytest.mark.parametrize(("lives", "said"), [(True, "executed another program"), (False, "has ended;")])
def test_memory_that_has_no_user_any_more(monkeypatch: pytest.MonkeyPatch, lives: bool, said: str) -> None:
    """A descriptor of /proc/PID/mem keeps the memory from before execve(2), which is empty then."""
    pid = os.getpid() if lives else 1 << 30
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    with pytest.raises(TargetGone, match=f"process {pid} {said}"):
        read_memory(0, pid, 0x1000, 8)
