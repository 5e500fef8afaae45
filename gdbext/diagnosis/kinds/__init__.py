"""The kinds of verdicts: each class has the rule, the sentence and the advice of one kind."""

from __future__ import annotations

from gdbext.diagnosis.kinds import blocked, crashed, deadlock, lost, outside, state
from gdbext.diagnosis.report.finding import NOTE, FindingKind

KINDS = (
    crashed.CRASH,
    crashed.RUNAWAY_RECURSION,
    deadlock.DEADLOCK,
    deadlock.SELF_DEADLOCK,
    lost.ORPHANED_LOCK,
    lost.MISSING_WORKERS,
    outside.KERNEL_WAIT,
    blocked.BLOCKED,
    state.STOPPED,
    state.STARVED,
    outside.GIL_IN_DEVICE_CALL,
    outside.WAITING_EXTERNAL,
    state.SLOW,
    state.BUSY,
    state.IDLE,
)
"""All kinds, the strongest first."""
_RANKS = {kind.value: rank for rank, kind in enumerate(KINDS)}


def kind_of(word: str) -> FindingKind:
    """The kind with this JSON word."""
    if word in _RANKS:
        return KINDS[_RANKS[word]]
    return NOTE if word == NOTE.value else FindingKind.of_json_text(word)


def rank_of(word: str) -> int:
    """Strength of the kind with this JSON word: 0 is the strongest, an unknown word the weakest."""
    return _RANKS.get(word, len(KINDS))
