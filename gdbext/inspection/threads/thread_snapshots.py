"""Snapshots of threads: everything that is read of a thread, put together once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.threads.stack_frames import python_frames
from gdbext.errors import GdbextError, TargetGone
from gdbext.model.absent import Absent
from gdbext.targets.base import Target, Thread
from gdbext.unwind.stack import Stack
from gdbext.waits.snapshot import ProcessSnapshot, ThreadSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gdbext.cpython.threads.thread_table import ThreadTable
    from gdbext.inspection.error_log import ErrorLog
    from gdbext.inspection.stacks import Stacks
    from gdbext.model.threads.frame import Frame
    from gdbext.torch.stack.dispatch_stack import DispatchStackReader

_RUNS_ON = "it runs, and nobody is stopped (--no-stop)"
TORCH_PREFIXES = ("libtorch", "libc10")


class ThreadSnapshots:
    """Takes the snapshots of one process."""

    def __init__(
        self,
        target: Target,
        process: ProcessSnapshot,
        stacks: Stacks,
        python: ThreadTable | None,
        dispatch: DispatchStackReader | None,
        errors: ErrorLog,
    ) -> None:
        """``process`` gets its threads here. ``python``: None without CPython, ``dispatch``: None without torch."""
        self._target = target
        self._process = process
        self._stacks = stacks
        self._python = python
        self._dispatch = dispatch
        self._errors = errors
        self._taken: dict[int, ThreadSnapshot] = {}

    def all(self) -> ProcessSnapshot:
        """The process with all its threads. A thread that cannot be read costs itself and is noted."""
        if not self._process.threads:
            for thread in self._target.threads():
                try:
                    self._process.threads.append(self.of(thread))
                except TargetGone:
                    raise
                except GdbextError as error:
                    self._errors.note(error, f"thread {thread.tid}")
        return self._process

    def of(self, thread: Thread) -> ThreadSnapshot:
        """The snapshot of a thread. Raises TargetError where its registers cannot be read."""
        taken = self._taken.get(thread.tid)
        if taken is None:
            taken = self._taken[thread.tid] = self._take(thread)
        return taken

    def _take(self, thread: Thread) -> ThreadSnapshot:
        registers: Mapping[str, int] = {} if thread.runs_on else thread.registers()
        stack = self._stacks.unseen(_RUNS_ON) if thread.runs_on else self._stacks.of(thread)
        python, notes = self._python_frames(thread, stack)
        if stack.outer is not None:
            notes = (*notes, f"the stack ends early: {stack.outer.reason}")
        return ThreadSnapshot(
            self._process,
            thread.tid,
            registers,
            stack,
            kernel_state=thread.kernel_state,
            python=python,
            dispatch=self._dispatch.steps(stack) if self._dispatch is not None else (),
            unseen_dispatch=self._unseen_dispatch(stack),
            name=thread.name,
            python_name=self._python.names.get(thread.tid) if self._python is not None else None,
            number=thread.number,
            signal=thread.signal,
            notes=notes,
        )

    def _python_frames(self, thread: Thread, stack: Stack) -> tuple[tuple[Frame, ...], tuple[str, ...]]:
        """The Python frames, and what could not be read of them."""
        if self._python is None:
            return (), ()
        try:
            return python_frames(self._python.runtime, self._python.states.get(thread.tid, ()), stack)
        except TargetGone:
            raise
        except GdbextError as error:
            return (), (f"Python frames: {error.what}",)

    def _unseen_dispatch(self, stack: Stack) -> Absent | None:
        """Why there may be frames of the dispatcher that cannot be seen on a stack."""
        if self._dispatch is None:
            return None
        if stack.outer is not None:
            return Absent("the stack ends early")
        for module in {frame.module for frame in stack.frames if frame.module is not None}:
            if module.name.startswith(TORCH_PREFIXES) and module.image is None:
                return Absent(f"the functions of {module.name} have no names without its file")
        return None
