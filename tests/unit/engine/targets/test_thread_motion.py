"""Whether a thread moved, by what /proc says of it."""

from __future__ import annotations

import pytest

from gdbext.engine.targets.live.thread_motion import RUNNING, SleepPlace

ASLEEP = SleepPlace("202 0x7f0c 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd10 0x7f21b0", "100 20 3")


def test_where_a_sleeping_thread_s_stack_ends() -> None:
    assert ASLEEP.stack_pointer == 0x7FFD10
    assert SleepPlace(RUNNING, "").stack_pointer is None


def test_nothing_moved() -> None:
    assert not SleepPlace(*ASLEEP).has_moved(ASLEEP)


@pytest.mark.parametrize(
    "later",
    [
        ASLEEP._replace(ran="160 20 4"),  # it woke up and is back
        ASLEEP._replace(call=ASLEEP.call.replace("0x7ffd10", "0x7ffd00")),
        ASLEEP._replace(call=RUNNING),
        SleepPlace("", ""),
    ],
)
def test_it_moved(later: SleepPlace) -> None:
    assert later.has_moved(ASLEEP)


def test_one_that_runs_all_the_time_moves_all_the_time() -> None:
    assert SleepPlace(RUNNING, "1 2 3").has_moved(SleepPlace(RUNNING, "1 2 3"))


def test_without_knowledge_it_may_have_moved() -> None:
    assert SleepPlace("", "").has_moved(SleepPlace("", ""))
