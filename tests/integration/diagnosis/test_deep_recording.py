"""The recording of a stack overflow of 25,000 frames: replayed within seconds, in bounded memory."""

from __future__ import annotations

import re
import resource

import pytest

from support.recorded import recordings
from support.recorded.recordings import Replay
from support.recorded.scenario_checks import check_verdict


@pytest.mark.slow
def test_a_stack_of_25000_frames_is_replayed() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    replay = Replay("boxed-recursion-fallback-0")
    report = replay.document(*recordings.COMMAND)
    check_verdict("", report, replay.truth)
    assert "known" not in report
    # It was recorded before the name of a renamed backend, what other threads are in, and who traces them were read.
    missing = replay.target.missing_from_recording()
    pattern = r"((facts of the system|pages of memory|symbols of [\w.+]+) \(\d\)(, )?){0,6}"
    assert re.fullmatch(pattern, missing), missing
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "kilobytes"
