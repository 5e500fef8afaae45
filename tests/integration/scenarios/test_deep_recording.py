"""The recording of a stack overflow of 25,000 frames: replayed within seconds, in bounded memory."""

from __future__ import annotations

import resource

import pytest
import recordings
from recordings import Replay
from scenario_checks import check_verdict


@pytest.mark.slow
def test_a_stack_of_25000_frames_is_replayed() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    replay = Replay("boxed-recursion-fallback-0")
    check_verdict("", replay.document(*recordings.COMMAND), replay.truth)
    assert replay.target.lacks() == ""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "kilobytes"
