"""Recorded processes, parts of them replaced by garbage: nothing but typed errors, in time, and no false claim."""

from __future__ import annotations

import pytest

from support.fuzzing import recording_kinds, worker
from support.fuzzing.look import Kind


@pytest.mark.timeout(300, method="thread")  # a signal of its own would be left behind by each look
@pytest.mark.parametrize("seed", range(0, 4000, 1000))
@pytest.mark.parametrize("kind", recording_kinds.KINDS, ids=lambda kind: kind.name)
def test_garbage_in_what_is_read(kind: Kind, seed: int) -> None:
    """Another recording, command and damage with each seed (see scripts/fuzz.py)."""
    result = worker.run(kind, seed)
    assert result.failures == []
