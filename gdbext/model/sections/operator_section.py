"""Operators as ``dispatch-op`` reports them: schema, registrations, computed dispatch table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.dispatch.registered_kernel import RegisteredKernel
from gdbext.model.record import Record
from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class OperatorRegistration:
    """One kernel that somebody registered under ``key``."""

    key: str
    is_alias: bool
    """``key`` is an alias key: it fills the table entries of several runtime keys."""
    active: bool
    """False where a later registration under the same key overrides it."""
    kernel: RegisteredKernel
    debug: str
    """PyTorch's "registered at FILE:LINE"."""
    inferred_schema: str | None
    """The schema inferred from a C++ kernel's signature, None without one."""


@dataclass(frozen=True)
class TableChoice:
    """The kernel of a table entry and how it was chosen; None where the registrations cannot be read."""

    kernel: RegisteredKernel
    debug: str | None
    reason: str | None
    """PyTorch's words: "kernel", "math kernel", "backend fallback", "missing", …"""
    path: str | None
    """The step of ``OperatorEntry::computeDispatchTableEntryWithDebug``: "1", "2.1" … "4"."""
    source: str | None
    """The key, alias key or "fallback" under which the kernel was registered."""
    expected: RegisteredKernel | None = None
    """The kernel that the registrations lead to, where the table in memory holds another one."""


class TableEntry(Record):
    """One slot of a dispatch table. A tuple, for all operators have half a million; equal choices are shared."""

    key: str
    slot: int
    choice: TableChoice


@dataclass(frozen=True)
class OperatorReport:
    """One operator overload."""

    op: str
    overload: str
    address: int
    """Of the ``c10::Dispatcher::OperatorDef``."""
    schema: str | None
    debug: str | None
    """Where the schema was registered."""
    registrations: tuple[OperatorRegistration, ...] | None
    """None where they cannot be read; ``table`` then holds what stands in memory."""
    table: tuple[TableEntry, ...]

    @property
    def qualified(self) -> str:
        """``aten::mm.out``."""
        return f"{self.op}.{self.overload}" if self.overload else self.op


@dataclass(frozen=True)
class OperatorSection(Section):
    """The operators that were asked for."""

    name: ClassVar[str] = "operators"
    operators: tuple[OperatorReport, ...]
