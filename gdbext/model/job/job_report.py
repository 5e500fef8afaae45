"""JobReport: the answer to "why does this job hang?", from the reports of its ranks."""

from __future__ import annotations

from enum import Enum

from gdbext.model.job.rank_report import RankReport, Unreached
from gdbext.model.record import Record

SCHEMA = "gdbext-ranks/1"


class JobVerdictKind(Enum):
    """The verdict kinds of a job, strongest first. Before the last two come those of a single rank that explains it."""

    MISMATCHED_COLLECTIVE = "mismatched-collective"
    DEAD_RANK = "dead-rank"
    LATE_RANK = "late-rank"
    STORE_WAIT = "store-wait"
    ALL_BUSY = "all-busy"
    ALL_IDLE = "all-idle"


class MatchState(Enum):
    """How an operation of several ranks fits together, in the words of torch/distributed/flight_recorder (2.13.0)."""

    FULLY_MATCHED = "FULLY_MATCHED"
    COLLECTIVE_TYPE_MISMATCH = "COLLECTIVE_TYPE_MISMATCH"
    SIZE_OR_SYNTAX_MISMATCH = "SIZE_OR_SYNTAX_MISMATCH"
    COLLECTIVE_STATE_MISMATCH = "COLLECTIVE_STATE_MISMATCH"
    COLLECTIVE_DTYPE_MISMATCH = "COLLECTIVE_DTYPE_MISMATCH"
    UNDECIDED = "UNDECIDED"

    @property
    def is_mismatch(self) -> bool:
        """The ranks do not call the same thing; another state than the others' is only time."""
        return self in _MISMATCHES


_MISMATCHES = (
    MatchState.COLLECTIVE_TYPE_MISMATCH,
    MatchState.SIZE_OR_SYNTAX_MISMATCH,
    MatchState.COLLECTIVE_DTYPE_MISMATCH,
)


class Variant(Record):
    """What some of the ranks issued under one number."""

    text: str
    """``all_reduce f32[8, 2]``."""
    ranks: tuple[int, ...]


class CollectiveMatch(Record):
    """One operation of one group over its ranks."""

    group: str
    name: str
    members: tuple[int, ...]
    seq: int
    state: MatchState
    variants: tuple[Variant, ...]
    """Most ranks first."""
    waiting: tuple[int, ...]
    """Ranks on which it is pending."""
    completed: tuple[int, ...]
    never: tuple[int, ...]
    """Members that were reached and have not issued it."""
    missing: tuple[int, ...]
    """Members of which there is no report."""


class TreeNode(Record):
    """A frame that some ranks share, below the frames that they share as well."""

    frame: str
    ranks: tuple[int, ...]
    unranked: int
    """Processes with this frame whose rank is not known."""
    children: tuple[TreeNode, ...] = ()


class JobVerdict(Record):
    """The verdict; ``kind`` is the contract's word."""

    kind: str
    summary: str
    ranks: tuple[int, ...] = ()
    """The ranks at fault."""


class JobReport(Record):
    """Everything; ``reports`` are sorted by rank, host and pid."""

    job: str | None
    size: int | None
    reports: tuple[RankReport, ...]
    missing: tuple[int, ...]
    """Ranks of the job of which there is no report."""
    unreached: tuple[Unreached, ...]
    tree: tuple[TreeNode, ...]
    collectives: tuple[CollectiveMatch, ...]
    verdict: JobVerdict
    odd: tuple[RankReport, ...]
    """The reports that explain the verdict, first of all."""
    notes: tuple[str, ...]
    """What is strange about the reports themselves: two of one rank, several jobs, several versions."""
