"""Targets for unit tests: memory from a dictionary, or this very process (read through /proc/self/mem)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.formats.elf_header import parse_auxv
from gdbext.engine.targets.base_target import (
    MemoryMapping,
    Target,
    TargetMemory,
    TargetMoment,
    TargetOrigin,
    TargetThread,
)
from gdbext.engine.targets.system.linux import parse_maps
from gdbext.errors import MemoryFault


class FakeOrigin(TargetOrigin):
    def __init__(self, kind: str, paths: Mapping[str, str]) -> None:
        super().__init__()
        self.kind = kind
        self._paths = paths

    def local_path(self, path: str) -> str:
        return self._paths.get(path, path)


class FakeTarget(Target, TargetMemory):
    """``regions`` maps start addresses to contents; whatever is not there cannot be read. Counts its reads."""

    debugger = "none"
    moment = TargetMoment()
    pid = 1 << 30  # no such process

    def __init__(
        self,
        regions: Mapping[int, bytes],
        maps: Sequence[MemoryMapping] = (),
        auxv: Mapping[int, int] | None = None,
        kind: str = "live",
        paths: Mapping[str, str] | None = None,
    ) -> None:
        self.architecture = by_name("x86_64")
        self.regions = dict(regions)
        self.reads: list[tuple[int, int]] = []
        self.is_closed = False
        self._origin = FakeOrigin(kind, paths or {})
        self._maps = maps
        self._auxv = auxv or {}

    @property
    def origin(self) -> TargetOrigin:
        return self._origin

    def read(self, address: int, size: int) -> bytes:
        self.reads.append((address, size))
        for start, contents in self.regions.items():
            if start <= address and address + size <= start + len(contents):
                return contents[address - start : address - start + size]
        raise MemoryFault(address, size)

    def threads(self) -> Sequence[TargetThread]:
        return []

    def selected_thread(self) -> TargetThread | None:
        return None

    def maps(self) -> Sequence[MemoryMapping]:
        return self._maps

    def auxv(self) -> Mapping[int, int]:
        return self._auxv

    def close(self) -> None:
        self.is_closed = True


class OwnProcess(FakeTarget):
    """The process that runs the tests. It is not stopped, so only what does not change may be compared."""

    def __init__(self) -> None:
        auxv = parse_auxv(Path("/proc/self/auxv").read_bytes())
        super().__init__({}, parse_maps(Path("/proc/self/maps").read_text()), auxv)
        self.pid = os.getpid()
        self._memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, size: int) -> bytes:
        try:
            found = os.pread(self._memory, size, address)
        except (OSError, OverflowError):
            found = b""
        if len(found) != size:
            raise MemoryFault(address, size)
        return found

    def close(self) -> None:
        os.close(self._memory)
