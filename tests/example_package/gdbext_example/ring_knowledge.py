"""What is known of the ring buffer of tests/inferiors/ring.py: its pool, its waits, and a bug of it."""

from __future__ import annotations

from gdbext import Affected, KnownBug, OwnerThread, Pool, Resource, ThreadPattern, ThreadSnapshot, Wait, WaitKind

FILE = "ring.py"
SERVERS = Pool("ring servers", python=((FILE, "serve"),), waits_in=((FILE, "take"),))
"""A server is idle while it waits in Ring.take."""


def runs(thread: ThreadSnapshot, function: str) -> bool:
    """The thread has that function of the ring on its stack."""
    return any(
        frame.file.endswith(f"/{FILE}") and frame.function.rpartition(".")[2] == function for frame in thread.python
    )


def ring_wait(thread: ThreadSnapshot) -> Wait | None:
    """A thread in Ring.put waits for room, which a stuck server should make."""
    if not runs(thread, "put"):
        return None
    stuck = [each.tid for each in thread.process.threads if runs(each, "serve") and runs(each, "handle")]
    owner = OwnerThread(stuck[0]) if len(stuck) == 1 else None
    return Wait(Resource(WaitKind.QUEUE, 0, "the ring"), owner, evidence=("it is inside Ring.put",))


BUGS = (
    KnownBug(
        "ring#7",
        "a server that handles a request puts into the full ring that it empties",
        "https://example.org/ring/issues/7",
        (Affected("ring", before="2.0"),),
        "update ring to 2.0",
        (ThreadPattern(python=((FILE, "put"), (FILE, "handle"), (FILE, "serve")), waits_for=("queue",)),),
    ),
)
