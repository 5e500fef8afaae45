"""CollectiveWait: what exactly a thread waits for that waits for other ranks."""

from __future__ import annotations

from gdbext.model.record import Record


class CollectiveWait(Record):
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
    peer: int | None = None
    """The other end of a send or recv: its rank in the job."""
    is_store: bool = False
    key: str = ""
    """The key of the store, "" where it is not known."""
    server: str = ""
    """Where the store is: ``127.0.0.1:29500``."""
    tag: int | None = None
    """That of a send or recv, None where it is not known."""
    on_device: bool = False
    """It waits for a device, which is not past this operation; what else is to run there, nobody knows."""

    @property
    def phrase(self) -> str:
        """``waits in #18 all_reduce (enqueued 18, completed 17)``."""
        if self.is_store:
            key = f"the key '{self.key}'" if self.key else "a key"
            return f"waits for {key} of the store{f' at {self.server}' if self.server else ''} ({self.op})"
        doing = "waits for the device, which is not past" if self.on_device else "waits in"
        if self.peer is not None:
            tag = f" (tag {self.tag})" if self.tag else ""
            return f"{doing} {self.op} {'to' if self.op == 'send' else 'from'} rank {self.peer}{tag}"
        number = f"#{self.seq} " if self.seq is not None else ""
        counts = (("enqueued", self.enqueued), ("completed", self.completed))
        known = ", ".join(f"{name} {count}" for name, count in counts if count is not None)
        return f"{doing} {number}{self.op}" + (f" ({known})" if known else "")
