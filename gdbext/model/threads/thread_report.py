"""ThreadReport: one thread, as it is reported."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.model.absent import Absent
    from gdbext.model.dispatch.dispatch_frame import DispatchFrame
    from gdbext.model.dispatch.dispatch_state import DispatchState
    from gdbext.model.threads.backward_node import BackwardNode
    from gdbext.model.threads.event_loop import EventLoop
    from gdbext.model.threads.frame import Frame
    from gdbext.model.threads.pool import Pool
    from gdbext.model.threads.wait import Resource, Wait


class RunState(Enum):
    """What a thread does: it runs, waits for something, or is an idle worker or prompt."""

    RUNNING = "running"
    WAITING = "waiting"
    IDLE = "idle"


class ThreadReport(Record):
    """All that is known of one thread."""

    tid: int
    name: str | None = None
    python_name: str | None = None
    number: int | None = None
    signal: str | None = None
    state: RunState = RunState.RUNNING
    wait: Wait | None = None
    holds: tuple[Resource, ...] = ()
    dispatch: tuple[DispatchFrame, ...] = ()
    unseen_dispatch: Absent | None = None
    """Why ``dispatch`` may lack frames (torch's file is missing, the stack ends early), None where it is complete."""
    frames: tuple[Frame, ...] = ()
    """Native and Python frames merged, innermost first. Empty unless asked for."""
    python: tuple[Frame, ...] = ()
    """Python frames alone; ``level`` is that of the native frame that evaluates them."""
    frame_count: int = 0
    notes: tuple[str, ...] = ()
    """What could not be read of this thread, and why its walk ended."""
    pool: Pool | None = None
    """The pool whose idle worker this thread is, None for any other thread."""
    tls: DispatchState | None = None
    """The thread-local state of dispatch; None unless asked for."""
    loop: EventLoop | None = None
    """The event loop of asyncio that this thread runs."""
    nodes: tuple[BackwardNode, ...] = ()
    """The nodes of autograd's graph that run on its stack, innermost first; empty unless asked for."""
    stack_key: int = 0
    """Equal for threads with equal stacks; 0 where the stack is unknown."""

    @property
    def label(self) -> str:
        """The thread as people call it: its Python name, else the kernel's, with the tid."""
        name = self.python_name or self.name
        return f"{name} (tid {self.tid})" if name else f"thread {self.tid}"

    @property
    def innermost(self) -> DispatchFrame | None:
        """The innermost frame of the dispatcher, None for a thread outside of it."""
        return self.dispatch[0] if self.dispatch else None

    @property
    def python_line(self) -> str:
        """The innermost Python line, ``train.py:8 (step)``, "" where there is none."""
        return self.python[0].place if self.python else ""

    @property
    def user_line(self) -> str:
        """The innermost Python line outside of Python's library and site-packages, "" where there is none."""
        return self.user_frame.place if self.user_frame is not None else ""

    @property
    def user_frame(self) -> Frame | None:
        """The innermost Python frame outside of Python's library and site-packages, None where there is none."""
        return next((f for f in self.python if "/lib/python" not in f.file and f.file[:1] != "<"), None)
