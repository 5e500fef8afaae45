"""The recording of a stack overflow of 25,000 frames: replayed within seconds, in bounded memory."""

from __future__ import annotations

import resource

import pytest

from support.recorded import recordings
from support.recorded.recordings import Replay
from support.recorded.scenario_checks import check_verdict


@pytest.mark.slow
def test_a_stack_of_25000_frames_is_replayed() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    replay = Replay("boxed-recursion-fallback-0")
    check_verdict("", replay.document(*recordings.COMMAND), replay.truth)
    # It was recorded before the name of a renamed backend was read, from two symbols of libc10.
    assert replay.target.missing_from_recording() in ("", "symbols of libc10.so (2)")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "kilobytes"
