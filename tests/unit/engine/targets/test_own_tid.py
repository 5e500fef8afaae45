"""Thread ids in PID namespaces."""

from __future__ import annotations

import os

import pytest

from gdbext.engine.targets.live.local_process import own_tid


def test_the_namespace_is_ours() -> None:
    assert own_tid(os.getpid(), os.getpid()) == os.getpid()
    assert own_tid(os.getpid(), 123) == 123, "nothing is read"


def test_another_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "samefile", lambda *_: False)
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("NSpid:"))
    assert own_tid(os.getpid(), os.getpid()) == int(line.split()[-1])
    assert own_tid(1 << 22, 1 << 22) == 1 << 22, "it has ended"
