"""What a recording holds, as plain facts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gdbext.model.record import Record
from gdbext.model.recorded_run import RecordedRun
from gdbext.targets.base import MemoryMapping, Signal
from gdbext.targets.host_files import Fact
from gdbext.targets.recording.sparse_bytes import SparseBytes

Search = tuple[bytes, int, int, int]
"""What was searched, from which address to which, in which steps (ElfImage.find)."""


class RecordedThread(Record):
    """One thread; ``registers`` are empty where they could not be read, and ``problem`` and ``help`` say why."""

    tid: int
    number: int | None
    name: str | None
    signal: Signal | None
    kernel_state: str | None
    registers: Mapping[str, int]
    problem: str = ""
    help: str = ""
    float_registers: Mapping[str, int] = MappingProxyType({})
    """As Thread.float_registers."""


class RecordedModule(Record):
    """How the search for a module's file ended (see process.modules.Module); ``file`` is its index, None without."""

    status: str
    problem: str
    file: int | None


class RecordedNumbers(Record):
    """What is known of an array of ``length`` unsigned numbers of ``width`` bytes each."""

    length: int
    width: int
    contents: SparseBytes


class RecordedFile(Record):
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


class Recording(Record):
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
    auxv: Mapping[int, int] = MappingProxyType({})
    environ: Mapping[str, str] = MappingProxyType({})
    facts: Mapping[str, Fact] = MappingProxyType({})
    """What was asked of the system (see HostFiles), by name."""
    kept: Mapping[str, str] = MappingProxyType({})
    modules: Mapping[int, RecordedModule] = MappingProxyType({})
    """By the address where each begins."""
    files: tuple[RecordedFile, ...] = ()
    memory: SparseBytes = SparseBytes((), ())
    unreadable: frozenset[int] = frozenset()
    """Addresses of pages that could not be read."""
