"""Verdict: the answer to "why does it hang?"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.model.judgement.finding import Finding


class Verdict(Record):
    """The strongest finding, and what to do about it."""

    finding: Finding
    advice: tuple[str, ...] = ()
    """What to try next, in words and commands that fit this process."""

    def is_about(self, finding: Finding) -> bool:
        """The finding is the one that the verdict states."""
        return bool(finding.id) and finding.id == self.finding.id
