"""RankReport: what a job's report keeps of the report on one rank."""

from __future__ import annotations

from gdbext.model.record import Record
from gdbext.model.threads.collective_wait import CollectiveWait


class Issued(Record):
    """One operation of a group, as far as ranks can be compared by it."""

    seq: int
    op: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    is_pending: bool = False


class GroupState(Record):
    """How far one rank came in one group. ``issued`` are its last operations and all pending ones, by number."""

    name: str
    description: str
    size: int | None
    ranks: str
    """The members, as a set of ranks; "" where they are not known."""
    enqueued: int | None
    completed: int | None
    issued: tuple[Issued, ...] = ()

    @property
    def label(self) -> str:
        """The group as people call it; torch calls groups without a description "undefined"."""
        return self.name if self.description in ("", "undefined") else self.description


class RankReport(Record):
    """One process of the job. What is None is not known."""

    rank: int | None
    host: str | None
    pid: int
    job: str | None
    size: int | None
    """Ranks of the whole job."""
    torch: str | None
    kind: str
    """The kind of the verdict on this process (contract, section 4)."""
    summary: str
    path: tuple[str, ...] = ()
    """From the outermost frame to the wait."""
    wait: CollectiveWait | None = None
    """What of other ranks the main thread waits for; None where it waits for none."""
    running: bool = False
    """The main thread is in no wait at all."""
    groups: tuple[GroupState, ...] = ()
    problem: str = ""
    """Why nothing is known of where it is, and what to try; "" where something is."""
    restart: int | None = None
    """How often the launcher had started its machine's ranks before."""
    paused_ms: float | None = None
    """How long the process stood still for its report, in milliseconds; None where nobody measured it."""

    @property
    def label(self) -> str:
        """``rank 5``; ``pid 77 on node3`` where nobody knows its rank."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"pid {self.pid}" + (f" on {self.host}" if self.host else "")

    @property
    def waits_for_ranks(self) -> bool:
        """Its main thread waits in a collective, a send or a recv."""
        return self.wait is not None and not self.wait.is_store


class Unreached(Record):
    """A process, node or file that gave no report: silence is a finding."""

    where: str
    reason: str
    help: str = ""
    ended: bool = False
    """The process is dead: a zombie, or gone while it was looked at."""
