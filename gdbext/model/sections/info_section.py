"""What ``dispatch-info`` reports: the parts of the process that matter here, and how each was identified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.hexadecimal import Hexadecimal
from gdbext.model.sections.section import Section
from gdbext.model.symbol_check import SymbolChecks


@dataclass(frozen=True)
class LayoutInfo:
    """The torch layout in use. ``made_from`` says what it was measured on ("version", "compiler", …)."""

    id: str
    match: str
    made_from: Mapping[str, object]


@dataclass(frozen=True)
class TorchInfo:
    """PyTorch; ``layout`` and ``operators`` (how many are registered) are None where they are not known, ``symbols``
    says which of the assumed names its libraries have."""

    version: str
    layout: LayoutInfo | None
    operators: int | None
    symbols: SymbolChecks


@dataclass(frozen=True)
class PythonInfo:
    """The CPython in the process."""

    version: str
    module: str
    thread_states: int


@dataclass(frozen=True)
class LibcInfo:
    """The C library; ``version`` is None where its banner cannot be read."""

    path: str
    version: str | None


@dataclass(frozen=True)
class ModuleInfo:
    """A mapped ELF file that matters here or cannot be used."""

    path: str
    status: str
    problem: str | None
    build_id: str | None
    base: Hexadecimal


@dataclass(frozen=True)
class TargetInfo(Section):
    """Everything; a part that is not there, or cannot be read, is None."""

    name: ClassVar[str] = "info"
    threads: int
    torch: TorchInfo | None
    python: PythonInfo | None
    libc: LibcInfo | None
    modules: tuple[ModuleInfo, ...]
    environment: Mapping[str, str]
    """Environment variables that change what torch, OpenMP, NCCL or Python do, as the process was started with."""
