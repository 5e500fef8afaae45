"""Interrupts that are heard at a good moment: one wish is one end, however many signals it sends."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from gdbext.live import timed_run
from gdbext.live.timed_run import DeferredInterrupt, SilenceNotice


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its time is ``now``."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(timed_run, "time", clock)
    return clock


def test_two_signals_of_one_wish_end_it_once(clock: SimpleNamespace) -> None:
    """As ``timeout -s INT`` sends them: to its child, and to the group that the child is in."""
    with DeferredInterrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        clock.now += 0.9
        os.kill(os.getpid(), signal.SIGINT)
        assert not interrupt.sleep(10)
    assert interrupt.came


def test_a_later_one_interrupts_at_once(clock: SimpleNamespace) -> None:
    with DeferredInterrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert not interrupt.sleep(10)
        clock.now += 1.1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("is_here", "has_come", "said"), [(False, False, ["no dispatch in 0 s"]), (True, False, ["ran"]), (False, True, [])]
)
def test_a_run_that_shows_nothing_says_so_once(
    is_here: bool, has_come: bool, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_run, "SILENT_AFTER", 0.03)
    monkeypatch.setattr(timed_run, "_SETTLED", 0.01)
    shown: list[str] = []
    pid = os.getpid() if is_here else 0
    with SilenceNotice(pid, "dispatch", "did something else", lambda: has_come, shown.append) as notice:
        notice._thread.join()
    assert len(shown) == len(said)
    assert all(words in text for words, text in zip(said, shown))
    assert notice.text == "".join(shown)
