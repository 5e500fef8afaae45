"""Looks at a live process without a debugger: as it sleeps, or stopped for as long as copying takes.

A thread that nobody stops has no register that points to its control block; it is found where glibc puts it.
"""

from __future__ import annotations

from gdbext.engine.glibc.pthread import find_control_block, glibc_abi, is_control_block
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget, brief_stop
from gdbext.engine.targets.live.stop_copy import mapping_at
from gdbext.engine.targets.live.unstopped import UnstoppedProcess
from gdbext.errors import GdbextError


class ThreadFinder:
    """Callable: (target, thread id, its id in its own PID namespace, stack pointer) → thread pointer, 0 where it is not
    found."""

    def __init__(self) -> None:
        self._distances: list[int] = []
        """Distances from a thread pointer to the end of its stack, as found so far: most threads have the same."""

    def __call__(self, target: Target, tid: int, own_tid: int, stack_pointer: int) -> int:
        maps, abi = target.maps(), glibc_abi(target.architecture)
        stack = mapping_at(maps, stack_pointer)
        try:
            for address in [stack.end - each for each in self._distances] if stack is not None else []:
                if is_control_block(target.read, address, abi, own_tid):
                    return address
            found = find_control_block(target.read, maps, abi, own_tid, stack_pointer, tid == target.pid)
        except GdbextError:
            return 0
        if found is not None and stack is not None and found in range(stack.start, stack.end):
            self._distances.append(stack.end - found)
        return found or 0


def unstopped(pid: int) -> UnstoppedProcess:
    """Process ``pid`` as it sleeps and runs: nobody is ever stopped. Raises as SnapshotTarget."""
    return UnstoppedProcess(pid, ThreadFinder())


def brief_look(pid: int) -> SnapshotTarget:
    """Process ``pid``: not stopped where all threads sleep, and nothing else needs a stop. Raises as SnapshotTarget."""
    return brief_stop(pid, lambda: unstopped(pid))
