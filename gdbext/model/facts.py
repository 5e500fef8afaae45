"""The facts that the analysis takes and gives. Frozen; names and meanings follow the JSON contract."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdbext.model.dispatch_frame import DispatchFrame, DispatchKeySet, Kernel

__all__ = [
    "CycleEdge",
    "DispatchFrame",
    "DispatchKeySet",
    "Finding",
    "Frame",
    "Kernel",
    "Owner",
    "Resource",
    "ThreadReport",
    "Verdict",
    "Wait",
]  # fmt: skip

RESOURCE_KINDS = (
    "gil", "mutex", "rwlock", "condvar", "semaphore", "python-lock", "static-init", "once", "loader-lock",
    "libc-lock", "join", "barrier", "worker-pool", "queue", "futex", "io", "child-process", "sleep", "device",
    "collective",
)  # fmt: skip

VERDICT_KINDS = (
    "crash", "runaway-recursion", "deadlock", "self-deadlock", "orphaned-lock", "missing-workers", "blocked",
    "waiting-external", "busy", "idle",
)  # fmt: skip
"""Strongest first."""


@dataclass(frozen=True)
class Resource:
    """Something a thread can wait for or hold. ``address`` is that of the lock, guard, semaphore, … or 0."""

    kind: str
    address: int
    name: str = ""


@dataclass(frozen=True)
class Owner:
    """Who holds a resource: ``state`` is "alive" or "gone" (recorded, but no thread of this process)."""

    tid: int
    state: str = "alive"


@dataclass(frozen=True)
class Wait:
    """What a thread waits for. ``certainty``: "recorded" in memory, "inferred" from stacks, "unknown"."""

    resource: Resource
    owner: Owner | None = None
    certainty: str = "unknown"
    timed: bool = False
    """The wait ends by itself after a timeout."""
    evidence: tuple[str, ...] = ()
    others: tuple[Owner, ...] = ()
    """Further owners, where all of them must let go (readers of a rwlock, team mates before a barrier)."""
    companion: Resource | None = None
    """The mutex that goes with a condition variable."""
    handover: bool = False
    """The resource is free or was just handed on: the thread is about to be woken, nobody holds it up."""
    missing: str = ""
    """Why the threads that would end this wait do not exist in this process; "" when that is not known."""

    external: bool = False
    """Another process may end it: the object is in memory that both have."""
    seconds: float | None = None
    """How long a sleep takes from now on, None where that is not known."""

    @property
    def owners(self) -> tuple[Owner, ...]:
        """All known owners."""
        return ((self.owner,) if self.owner else ()) + self.others


@dataclass(frozen=True)
class Frame:
    """One frame for people: native or Python."""

    level: int
    kind: str
    function: str
    module: str = ""
    file: str = ""
    line: int | None = None
    pc: int | None = None
    role: str = ""


@dataclass(frozen=True)
class ThreadReport:
    """All that is known of one thread."""

    tid: int
    name: str | None = None
    python_name: str | None = None
    number: int | None = None
    signal: str | None = None
    state: str = "running"
    wait: Wait | None = None
    holds: tuple[Resource, ...] = ()
    dispatch: tuple[DispatchFrame, ...] = ()
    dispatch_doubt: str = ""
    """Why ``dispatch`` may lack steps (torch's file is missing, the stack ends early), "" where it is complete."""
    frames: tuple[Frame, ...] = ()
    """Native and Python frames merged, innermost first. Empty unless asked for."""
    python: tuple[Frame, ...] = ()
    """Python frames alone; ``level`` is that of the native frame that evaluates them."""
    frame_count: int = 0
    notes: tuple[str, ...] = ()
    """What could not be read of this thread, and why its walk ended."""
    pool: str = ""
    """The pool whose idle worker this thread is ("OpenMP", "autograd", …), "" for any other thread."""
    stack_key: int = 0
    """Equal for threads with equal stacks; 0 where the stack is unknown."""

    @property
    def label(self) -> str:
        """The thread as people call it: its Python name, else the kernel's, with the tid."""
        name = self.python_name or self.name
        return f"{name} (tid {self.tid})" if name else f"thread {self.tid}"

    @property
    def python_line(self) -> str:
        """The innermost Python line, ``train.py:8 (step)``, "" where there is none."""
        return _line_of(self.python[0]) if self.python else ""

    @property
    def user_line(self) -> str:
        """The innermost Python line outside of Python's library and site-packages, "" where there is none."""
        return next((_line_of(f) for f in self.python if "/lib/python" not in f.file and f.file[:1] != "<"), "")


def _line_of(frame: Frame) -> str:
    return f"{frame.file}:{frame.line if frame.line is not None else '?'} ({frame.function})"


@dataclass(frozen=True)
class Finding:
    """One thing worth saying. ``kind`` is a verdict kind, or "note"."""

    kind: str
    summary: str
    threads: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class CycleEdge:
    """Thread ``tid`` waits for ``waits_for``, which thread ``held_by`` holds."""

    tid: int
    waits_for: Resource
    held_by: int


@dataclass(frozen=True)
class Verdict:
    """The strongest finding in one sentence, with what it is about."""

    kind: str
    summary: str
    threads: tuple[int, ...] = ()
    op: str | None = None
    key: str | None = None
    stage: str | None = None
    cycle: tuple[CycleEdge, ...] = ()
    advice: tuple[str, ...] = field(default=())
    """What to try next, in words and commands that fit this process."""
