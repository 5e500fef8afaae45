"""Finds the owner of the stack that a thread stands on.

glibc puts the control block of a thread that it makes at the upper end of the thread's stack (nptl/allocatestack.c),
so the thread pointer says where that is. A thread may leave its stack, for a signal's or a coroutine's; it never runs
on another thread's. Where its stack pointer lies in one, register or record are damaged, and what is read from there
on is the other thread's.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.targets.base_target import Target, TargetThread
from gdbext.errors import GdbextError


class StackOwners:
    """The stacks of one process's threads."""

    def __init__(self, target: Target, modules: ModuleTable) -> None:
        self._target = target
        self._modules = modules
        self._pointers: list[tuple[int, int, int]] | None = None

    def stranger(self, thread: TargetThread, registers: Mapping[str, int]) -> int | None:
        """The other thread in whose stack this one's stack pointer lies; None as a rule."""
        architecture = self._target.architecture
        sp = registers.get(architecture.stack_pointer, 0)
        around = self._modules.mapping_at(sp)
        if around is None or around.path or around.start <= architecture.thread_pointer(registers) < around.end:
            return None
        return next(
            (
                tid
                for pointer, place, tid in self._thread_pointers()
                if (sp < pointer < around.end or sp == place) and tid != thread.tid
            ),
            None,
        )

    def _thread_pointers(self) -> list[tuple[int, int, int]]:
        """Thread pointer and stack pointer of each thread; not the first one's, whose control block is elsewhere."""
        if self._pointers is None:
            architecture, found = self._target.architecture, []
            for thread in self._target.threads():
                if thread.tid != self._target.pid and not thread.runs_on:
                    with suppress(GdbextError):
                        registers = thread.registers()
                        place = registers.get(architecture.stack_pointer, 0)
                        found.append((architecture.thread_pointer(registers), place, thread.tid))
            self._pointers = sorted(found)
        return self._pointers
