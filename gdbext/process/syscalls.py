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


RESTARTED = "restart_syscall"
"""The call that a thread is in after a stop, where nothing in it says which one goes on."""


def blocked(registers: Mapping[str, int], memory: Memory) -> Syscall | None:
    """The system call that the thread sits in, None when it runs user code."""
    found = memory.architecture.blocked_syscall(registers, memory.try_read)
    return None if found is None else _named(memory, *found)


def continued(call: Syscall, memory: Memory, cfa: int) -> Syscall:
    """The one that goes on in a RESTARTED one; ``cfa`` is that of the thread's second frame."""
    return _named(memory, memory.architecture.restarted_syscall(call.number, memory.try_read, cfa), call.arguments)


def _named(memory: Memory, number: int, arguments: tuple[int, ...]) -> Syscall:
    return Syscall(memory.architecture.syscall_names.get(number, f"system call {number}"), number, arguments)
