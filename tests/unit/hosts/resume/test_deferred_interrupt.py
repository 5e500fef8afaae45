"""Interrupts that are heard at a good moment: one wish is one end, however many signals it sends."""

from __future__ import annotations

import os
import signal

import pytest

from gdbext.hosts.resume import timed_run
from gdbext.hosts.resume.timed_run import DeferredInterrupt


def test_two_signals_of_one_wish_end_it_once() -> None:
    """As ``timeout -s INT`` sends them: to its child, and to the group that the child is in."""
    with DeferredInterrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert not interrupt.sleep(10)
    assert interrupt.came


def test_a_later_one_interrupts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_run, "_SAME_SECONDS", -1.0)
    with DeferredInterrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert not interrupt.sleep(10)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
