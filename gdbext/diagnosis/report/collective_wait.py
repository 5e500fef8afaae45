"""CollectiveWait: the operation in which a thread waits for other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Count


class CollectiveWait(NamedTuple):
    """A collective, a send or recv, or an operation of the store through which ranks meet."""

    op: str
    """``all_reduce``, ``recv``; of a store the function that waits: ``c10d::TCPStore::wait``."""
    seq: int | None = None
    """The operation's number in its group, None where nothing numbers it."""
    group: str = ""
    """Its process group: the description, else the name."""
    enqueued: int | None = None
    completed: int | None = None
    """The group's last numbers in this process."""
    peer: Count | None = None
    """The other end of a send or recv: its rank in the job."""
    is_store: bool = False
    key: str = ""
    """The key of the store, "" if unknown."""
    server: str = ""
    """The address of the store: ``127.0.0.1:29500``."""
    tag: int | None = None
    """The tag of a send or recv, None if unknown."""
    on_device: bool = False
    """It waits for a device that has not finished this operation; what else is queued there is unknown."""
    also_in: str = ""
    """Other threads of this process that wait in the same group: two threads keep no common order of operations."""
    from_any: bool = False
    """A recv that takes what any other rank of the group sends."""
    rank: int | None = None
    size: int | None = None
    """The rank of the process and the number of ranks, while it waits for all ranks at the store."""

    @property
    def phrase(self) -> str:
        """``waits in collective #18 all_reduce (last enqueued 18, last completed 17)``."""
        if self.is_store and self.size is not None:
            if self.rank:
                return f"tries, as rank {self.rank} of {self.size}, to reach the store of rank 0 at {self.server}"
            return f"waits, as rank 0, until all {self.size} ranks have reached its store at {self.server} ({self.op})"
        if self.is_store:
            key = f"the key '{self.key}'" if self.key else "a key"
            return f"waits for {key} of the store{f' at {self.server}' if self.server else ''} ({self.op})"
        doing = "waits for the device, which has not completed" if self.on_device else "waits in"
        if self.peer is not None:
            tag = f" (tag {self.tag})" if self.tag else ""
            return f"{doing} {self.op} {'from' if self.op == 'recv' else 'to'} rank {self.peer}{tag}"
        if self.from_any:
            return f"{doing} {self.op} from any rank{f' (tag {self.tag})' if self.tag else ''}"
        number = f"collective #{self.seq} " if self.seq is not None else ""
        counts = (("last enqueued", self.enqueued), ("last completed", self.completed))
        numbers = ", ".join(f"{name} {count}" for name, count in counts if count is not None)
        also = f", in a group that {self.also_in} uses at the same time" if self.also_in else ""
        return f"{doing} {number}{self.op}" + (f" ({numbers})" if numbers else "") + also
