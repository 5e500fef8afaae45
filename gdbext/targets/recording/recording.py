"""What a recording holds, as plain facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gdbext.model.recorded_run import RecordedRun
from gdbext.targets.base import MemoryMapping, Signal
from gdbext.targets.host_files import Fact
from gdbext.targets.recording.sparse_bytes import SparseBytes

Search = tuple[bytes, int, int, int]
"""What was searched, from which address to which, in which steps (ElfImage.find)."""


@dataclass(frozen=True)
class RecordedThread:
    """One thread; ``registers`` are empty where they could not be read, and ``problem`` and ``help`` say why."""

    tid: int
    number: int | None
    name: str | None
    signal: Signal | None
    kernel_state: str | None
    registers: Mapping[str, int]
    problem: str = ""
    help: str = ""


@dataclass(frozen=True)
class RecordedModule:
    """How the search for a module's file ended (see process.modules.Module); ``file`` is its index, None without."""

    status: str
    problem: str
    file: int | None


@dataclass(frozen=True)
class RecordedNumbers:
    """What is known of an array of ``count`` unsigned numbers of ``width`` bytes each."""

    count: int
    width: int
    contents: SparseBytes


@dataclass(frozen=True)
class RecordedFile:
    """What was read of an ELF file of ``size`` bytes.

    ``offsets`` are searches (needle, start, end) by file offset with their results, ``found`` those in the image;
    ``arrays`` those of the symbol index by kind.
    """

    path: str
    size: int
    contents: SparseBytes
    offsets: Mapping[tuple[bytes, int, int], int]
    found: Mapping[Search, int | None]
    arrays: Mapping[str, tuple[RecordedNumbers, RecordedNumbers]]


@dataclass(frozen=True)
class Recording:
    """Everything that was read of a target."""

    kind: str
    debugger: str
    pid: int
    architecture: str
    run: RecordedRun
    selected: int | None
    """The tid of the selected thread."""
    threads: tuple[RecordedThread, ...] = ()
    maps: tuple[MemoryMapping, ...] = ()
    auxv: Mapping[int, int] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """What was asked of the system (see HostFiles), by name."""
    kept: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[int, RecordedModule] = field(default_factory=dict)
    """By the address where each begins."""
    files: tuple[RecordedFile, ...] = ()
    memory: SparseBytes = field(default_factory=lambda: SparseBytes((), ()))
    unreadable: frozenset[int] = frozenset()
    """Addresses of pages that could not be read."""
