"""The process's knowledge of the job that it is a rank of: process groups, sequence numbers, pending collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, NamedTuple

from gdbext.engine.vocabulary import Section
from gdbext.torch.distributed.process_groups import ProcessGroup


class CollectivesSource(Enum):
    """The source that the collectives were read from."""

    FLIGHT_RECORDER = "flight-recorder"
    PROCESS_GROUP = "process-group"


class JobRank(NamedTuple):
    """The rank and the job of a process; None where neither its groups nor its environment say."""

    rank: int | None
    size: int | None
    local_rank: int | None
    local_size: int | None
    host: str | None
    job: str | None
    """The name that the ranks of a job have in common: the launcher's run id, or where they meet."""
    restart: int | None = None
    """Number of times that the launcher had started this machine's ranks before (torchrun --max-restarts)."""


UNKNOWN_JOB_RANK = JobRank(rank=None, size=None, local_rank=None, local_size=None, host=None, job=None)


@dataclass(frozen=True)
class CollectivesSection(Section):
    """All groups of a process, the default group first."""

    name: ClassVar[str] = "collectives"
    source: CollectivesSource | None
    """None where the process has no process group yet."""
    identity: JobRank
    groups: tuple[ProcessGroup, ...] = ()
    store: str | None = None
    """The place where the job's ranks meet."""
    output: str | None = None
    """The file that ``--output`` wrote, in the flight recorder's own format."""

    def with_output(self, path: str) -> CollectivesSection:
        return replace(self, output=path)
