"""CollectiveWait: the operation in which a thread waits for other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Count, Hexadecimal, Sparse


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
    part: Sparse[str] = ""
    """What the key of the store stands for, and who sets it, as text: ``rank 1's address for gloo, in new_group``; ""
    for a key of the program's own."""
    last_key: Sparse[str] = ""
    """The last of several keys of which one or more are not set yet; "" for one key."""
    owed_by: Sparse[str] = ""
    """The ranks of which one or more have to come before the key is set, as a set of ranks; "" if unknown."""

    for_agents: Sparse[bool] = False
    """It waits for torchrun's agents, which are no ranks."""
    group_peer: Sparse[int | None] = None
    """The other end's rank in ``group``, a communicator of MPI, where its rank in the job is not known."""
    returns_to: Sparse[Hexadecimal | None] = None
    """The address to which a call of MPI returns."""
    root: Sparse[int | None] = None
    """The root of a collective of MPI: its rank in the job."""

    @property
    def transfer(self) -> str:
        """``send`` or ``recv``, if it waits for one other end; "" for any other operation."""
        name = self.op.removeprefix("MPI_").lower()
        if name in ("recv", "probe", "mprobe"):
            return "recv"
        return "send" if name in ("send", "ssend", "rsend", "bsend") else ""

    @property
    def is_mpi(self) -> bool:
        return self.op.startswith("MPI_")

    @property
    def phrase(self) -> str:
        """``waits in collective #18 all_reduce (last enqueued 18, last completed 17)``."""
        if self.is_store and self.size is not None:
            if self.rank:
                return f"tries, as rank {self.rank} of {self.size}, to reach the store of rank 0 at {self.server}"
            return f"waits, as rank 0, until all {self.size} ranks have reached its store at {self.server} ({self.op})"
        if self.is_store:
            key = f"the key '{self.key}'" if self.key else "a key"
            key = f"the keys '{self.key}' to '{self.last_key}'" if self.last_key else key
            key = f"{self.part}: {key}" if self.part else key
            return f"waits for {key} of the store{f' at {self.server}' if self.server else ''} ({self.op})"
        if self.is_mpi:
            return f"waits in {self.op}{self._mpi_ends}"
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

    @property
    def _mpi_ends(self) -> str:
        """`` to rank 1 (tag 7) on MPI_COMM_WORLD``: what is known of a call of MPI besides its name."""
        preposition = {"send": "to", "recv": "from"}.get(self.transfer, "with")
        end = next((f" {preposition} rank {rank}" for rank in (self.peer, self.group_peer) if rank is not None), "")
        end += " from any rank" if self.from_any else ""
        end += f" (tag {self.tag})" if self.tag is not None else ""
        end += f" (root {self.root})" if self.root is not None else ""
        return end + (f" on {self.group}" if self.group else "")
