"""What a recording says that /proc said, damaged: it costs what it told, never the report."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.job import rank_of
from gdbext.diagnosis.job.collectives import transfer_of
from support.recorded.recordings import Replay, recording

NAME = "forked-lock-3.12"
"""A process that was forked while another thread held a lock: which parent it is a copy of is told by /proc."""
GARBAGE = ("", "\0", "7 (x) S " * 20, "7 (x) S " + "9" * 5000 + " 9" * 50, "0x12z", "-1", "\u0661\u0662")


@pytest.mark.parametrize("garbage", GARBAGE, ids=["empty", "nul", "many", "digits", "letters", "negative", "arabic"])
def test_each_file_damaged(garbage: str) -> None:
    whole = recording(NAME)
    names = [name for name in whole.facts if name.startswith("text /proc")]
    assert any(name.endswith("personality") for name in names)
    for damaged in [*([name] for name in names), names]:
        facts = {**whole.facts, **dict.fromkeys(damaged, garbage)}
        for command in ("dispatch-diagnose", "all-threads"):
            Replay(NAME, whole._replace(facts=facts)).document(command)


@pytest.mark.parametrize("rank", ["9" * 5000, "-1", "1_0", " 1", ""])
def test_a_rank_that_is_no_number(rank: str) -> None:
    """Whoever owns the process chooses its environment; Python refuses to convert more than 4300 digits."""
    assert rank_of({"RANK": rank, "SLURM_PROCID": "3"}) == ("SLURM_PROCID", 3)
    assert transfer_of(f"recv 0<-{rank}") == (f"recv 0<-{rank}", None)
