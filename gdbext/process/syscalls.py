"""The system call that a thread is blocked in, from its registers and the code around its program counter."""

from __future__ import annotations

from collections.abc import Mapping

from gdbext.model.record import Record
from gdbext.process.memory import Memory


class Syscall(Record):
    """A blocked system call: its name (``futex``, or ``system call 500``), number and arguments, in order."""

    name: str
    number: int
    arguments: tuple[int, ...]


def blocked(registers: Mapping[str, int], memory: Memory) -> Syscall | None:
    """The system call that the thread sits in, None when it runs user code."""
    found = memory.architecture.blocked_syscall(registers, memory.try_read)
    if found is None:
        return None
    number, arguments = found
    return Syscall(memory.architecture.syscall_names.get(number, f"system call {number}"), number, arguments)
