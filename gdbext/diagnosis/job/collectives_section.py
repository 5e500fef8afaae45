"""The process's knowledge of the job that it is a rank of: process groups, sequence numbers, pending collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gdbext.engine.record import Enum, Record
from gdbext.engine.vocabulary import Section
from gdbext.torch.distributed.nccl_communicators import Communicator


class CollectivesSource(Enum):
    """The source that the collectives were read from."""

    FLIGHT_RECORDER = "flight-recorder"
    PROCESS_GROUP = "process-group"


class Collective(Record):
    """One collective or point-to-point operation that this process has issued.

    ``seq`` is its number in its group as the group counts, None for a send or recv that nobody numbered. ``sizes`` and
    ``dtypes`` are those of the inputs. Times are milliseconds, None where they are not recorded.
    """

    seq: int | None
    op: str
    """The operation as the backend calls it, without the backend: ``all_reduce``."""
    state: str
    """``scheduled``, ``started`` or ``completed``, the flight recorder's words."""
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    is_p2p: bool = False
    peer: int | None = None
    """The other end of a send or recv: its rank in the job."""
    age_ms: int | None = None
    """Milliseconds since it was issued; None for a core."""
    timeout_ms: int | None = None
    thread: str = ""
    """The name of the thread that issued it."""
    backend: str = ""
    """The backend as the operation names it: ``gloo``, ``nccl``, ``nccl2``."""
    file: str | None = None
    line: int | None = None
    """The user's line that issued it: the innermost one outside of torch, else the innermost."""


class ProcessGroup(Record):
    """One process group. What is None could not be read; sequence numbers are None before the first collective."""

    name: str
    description: str
    backend: str | None
    rank: int | None
    """This process's rank in the group."""
    size: int | None
    ranks: tuple[int, ...]
    """The members' ranks in the job, by their rank in the group; empty where that is not known."""
    last_enqueued: int | None
    last_started: int | None
    last_completed: int | None
    pending: tuple[Collective, ...] = ()
    """Issued and not completed, oldest first."""
    recent: tuple[Collective, ...] = ()
    """The last ones that were issued, oldest first, to match them over ranks."""
    store: str | None = None
    """The place where the group's members meet: ``tcp://host:port``, ``file:///path``."""
    communicators: tuple[Communicator, ...] = ()
    """NCCL's own, of which this process is one rank; peers of their transfers are ranks in the group."""

    @property
    def label(self) -> str:
        """The group as people call it; torch describes groups that nobody described as "undefined"."""
        return self.name if self.description in ("", "undefined") else self.description


class JobRank(Record):
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


UNKNOWN_JOB_RANK = JobRank(None, None, None, None, None, None)


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
        """The same, after a file was written."""
        return replace(self, output=path)
