"""Registers of threads that LLDB must not be asked for now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class LentRegisters:
    """Of threads of which LLDB is making the stack: to ask for its frames would make LLDB lock that stack twice."""

    def __init__(self) -> None:
        self._of: dict[int, Mapping[str, int]] = {}

    @contextmanager
    def lend(self, tid: int, registers: Mapping[str, int]) -> Iterator[None]:
        """For as long as the stack of that thread is made."""
        self._of[tid] = registers
        try:
            yield
        finally:
            del self._of[tid]

    def of(self, tid: int) -> dict[str, int] | None:
        """None: ask LLDB."""
        registers = self._of.get(tid)
        return None if registers is None else dict(registers)
