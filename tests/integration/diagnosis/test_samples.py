"""--samples: several looks at a process that runs on in between, through gdb and without."""

from __future__ import annotations

import itertools

import pytest

from support.programs.harness import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

HELD_UP = ("slow", "starved")
"""What is true of a process that works, on a machine that others keep busy."""
ARGS = ("dispatch-diagnose", "--samples", "3", "--interval")


def progress_of(report):
    return {each["tid"]: each["progress"] for each in report["samples"]["threads"]}


@pytest.mark.parametrize("debugger", ["none", "gdb"])
@pytest.mark.parametrize(
    ("scenario", "verdict", "role", "progress"),
    [
        ("gil-mutex", "deadlock", "mutex-holder", "stuck"),
        ("busy", "busy", "main", "moved"),
        ("meta-mm-spin", "busy", "main", "spinning"),
        ("meta-mm", "blocked", "main", "stuck"),
    ],
)
def test_stuck_from_slow(scenario, verdict, role, progress, debugger, inferior):
    target = inferior(scenario)
    kinds = {verdict, *(HELD_UP if verdict == "busy" else ()), *(("idle",) if scenario == "busy" else ())}
    intervals = (str(0.2 * 2**attempt) for attempt in itertools.count())  # the busier the machine, the slower it moves

    def sampled():
        report = target.dispatch(*ARGS, next(intervals), debugger=debugger).document
        assert report["verdict"]["kind"] in kinds
        assert report["samples"]["count"] == 3
        return progress_of(report)[target.tid(role)]

    if progress == "stuck":
        assert sampled() == progress
    else:  # others may keep the processors meanwhile
        wait_until(lambda: sampled() == progress, f"it is seen to have {progress}")


@pytest.mark.program("mutex-abba")
def test_a_core_shows_one_moment_only(inferior):
    outcome = inferior("mutex-abba").dispatch(*ARGS, "0.2", debugger="none", core=True, check=False)
    assert outcome.status == 2
    assert "core" in outcome.document["errors"][0]["what"]


@pytest.mark.program("mutex-abba")
@pytest.mark.parametrize("argument", ["0", "1", "-3", "100000"])
def test_senseless_numbers(argument, inferior):
    outcome = inferior("mutex-abba").dispatch("dispatch-diagnose", "--samples", argument, debugger="none", check=False)
    assert outcome.status == 2
