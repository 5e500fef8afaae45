"""--samples: several looks at a process that runs on in between. Through gdb: hosts/gdb/test_gdb_resuming.py."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from support.programs.harness import Start, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

RUNS = {"busy", "slow", "starved"}
"""The last two are true of a process that works, on a machine that others keep busy."""
ARGS = ("dispatch-diagnose", "--samples", "3", "--interval")
PROGRAMS = [
    ("gil-mutex", {"deadlock"}, "mutex-holder", "stuck"),
    ("busy", {*RUNS, "idle"}, "main", "moved"),
    ("meta-mm-spin", RUNS, "main", "spinning"),
]


@pytest.mark.parametrize(("scenario", "verdicts", "role", "progress"), PROGRAMS)
def test_stuck_from_slow(scenario: str, verdicts: set[str], role: str, progress: str, inferior: Start) -> None:
    target = inferior(scenario)
    intervals = (str(0.2 * 2**attempt) for attempt in itertools.count())  # the busier the machine, the slower it moves

    def sampled() -> Any:
        report = target.dispatch(*ARGS, next(intervals), debugger="none").document
        assert report["verdict"]["kind"] in verdicts
        assert report["samples"]["count"] == 3
        return next(each["progress"] for each in report["samples"]["threads"] if each["tid"] == target.tid(role))

    if progress == "stuck":
        assert sampled() == progress
    else:  # others may keep the processors meanwhile
        wait_until(lambda: sampled() == progress, f"it is seen to have {progress}")


def test_a_core_shows_one_moment_only(inferior: Start) -> None:
    target = inferior("mutex-abba")
    outcome = target.dispatch(*ARGS, "0.2", debugger="none", core=True, check=False)
    assert outcome.status == 2
    assert "core" in outcome.document["errors"][0]["what"]
    for senseless in ("0", "100000"):
        words = ("dispatch-diagnose", "--samples", senseless)
        assert target.dispatch(*words, debugger="none", check=False).status == 2
