"""The event loops of one process: those of asyncio, the runners of trio and the greenlets."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.cpython.tasks.awaited import TRIO, awaited_by, trio_awaited
from gdbext.cpython.tasks.library_tasks import GREENLET, greenlet_awaited, greenlet_loops, trio_loops
from gdbext.cpython.tasks.loops import owes, read_loops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.cpython.objects.py_ref import PyRef
    from gdbext.cpython.tasks.awaited import Awaited
    from gdbext.cpython.tasks.loops import RunningLoop, RunningTask
    from gdbext.cpython.threads.runtime import PythonRuntime


class LoopReader:
    """Reads the loops once, and what their tasks wait for."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self._runtime = runtime

    @cached_property
    def loops(self) -> Sequence[RunningLoop]:
        """All loops that have tasks."""
        return [*read_loops(self._runtime), *trio_loops(self._runtime), *greenlet_loops(self._runtime)]

    def awaited(self, loop: RunningLoop, task: RunningTask) -> Awaited:
        """The object that a task of a loop waits for."""
        if loop.kind.startswith(TRIO):
            return trio_awaited(self._runtime, task)
        return (greenlet_awaited if loop.kind == GREENLET else awaited_by)(self._runtime, task)

    def owing(self, future: PyRef) -> RunningLoop | None:
        """The loop that alone can complete a concurrent.futures.Future; None without one."""
        return next((loop for loop in self.loops if loop.ident and owes(self._runtime, loop, future)), None)
