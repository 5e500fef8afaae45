"""Whether a thread moved, by what /proc says of it."""

from __future__ import annotations

import pytest

from gdbext.engine.targets.live.thread_motion import RUNNING, SleepPlace

ASLEEP = SleepPlace("202 0x7f0c 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd10 0x7f21b0", "100 20 3")


def test_where_a_sleeping_thread_s_stack_ends() -> None:
    assert ASLEEP.stack_pointer == 0x7FFD10
    assert SleepPlace(RUNNING, "").stack_pointer is None


@pytest.mark.parametrize(
    ("earlier", "later", "moved"),
    [
        (ASLEEP, ASLEEP, False),
        (ASLEEP, ASLEEP._replace(ran="160 20 4"), True),  # it woke up and is back
        (ASLEEP, ASLEEP._replace(call=ASLEEP.call.replace("0x7ffd10", "0x7ffd00")), True),
        (ASLEEP, ASLEEP._replace(call=RUNNING), True),
        (SleepPlace(RUNNING, "1 2 3"), SleepPlace(RUNNING, "1 2 3"), True),
        (SleepPlace("", ""), SleepPlace("", ""), True),  # not known
    ],
)
def test_whether_it_moved(earlier: SleepPlace, later: SleepPlace, moved: bool) -> None:
    assert later.has_moved(earlier) is moved
