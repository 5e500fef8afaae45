"""Damaged cores, and damaged files behind good ones."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from random import Random

from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.targets.recording.recording import SparseBytes
from gdbext.tools.outcome import Outcome
from support.programs import plain_program

from . import folders, live_programs, memory_damage, subjects
from .byte_damage import Bytes, damage_bytes, with_bytes
from .look import Change, Kind, Look
from .memory_damage import Patch
from .subjects import Subject

COMMANDS = (*subjects.JUDGED, *subjects.JUDGED, ("dispatch-info", "--json"), ("dispatch-diagnose",), ("dispatch-tls",))
_NAMES = ("plain", "python")


class CoreFile(Subject):
    def __init__(self, name: str) -> None:
        self.data = core_path(name).read_bytes()
        headers = list(_program_headers(self.data))
        self.headers = 64 + 56 * len(headers)
        self.notes = next((at, at + size) for kind, at, _, size in headers if kind == 4)
        self.offsets = {start: at for kind, at, start, size in headers if kind == 1 and size}
        segments = ((start, self.data[at : at + size]) for kind, at, start, size in headers if kind == 1 and size)
        open_core = partial(CoreTarget, str(core_path(name)))
        super().__init__(name, lambda command: subjects.look(command, open_core), SparseBytes.merged(segments))

    def in_file(self, change: Change) -> Iterator[Bytes]:
        """What is changed in memory as a change of the file."""
        if isinstance(change, Patch):
            start = max(start for start in self.offsets if start <= change.address)
            yield Bytes(self.offsets[start] + change.address - start, change.data, len(change.data))


def _program_headers(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(type, offset, address, size in the file) of each."""
    for at in range(64, 64 + 56 * struct.unpack_from("<H", data, 56)[0], 56):
        kind, _, offset, start, _, size = struct.unpack_from("<IIQQQQ", data, at)
        yield kind, offset, start, size


core_file = lru_cache(maxsize=2)(CoreFile)


@cache
def core_path(name: str) -> Path:
    path = folders.kept() / f"{name}.core"
    if not path.exists():
        with live_programs.running(name) as pid:
            plain_program.take_gcore(pid, path)
    return path


def _opened(data: bytes, changes: Sequence[Change]) -> CoreTarget:
    path = folders.scratch() / "core"
    path.write_bytes(with_bytes(data, changes))
    return CoreTarget(str(path))


def _memory(chance: Random, block: Random) -> Look:
    found = core_file(block.choice(_NAMES))
    damage = memory_damage.DAMAGES[chance.choice(("bits", "pointers", "counts", "strings", "pages"))]
    changes = [each for each in damage(found.memory, chance) if isinstance(each, Patch)]

    def opened(kept: Sequence[Change]) -> CoreTarget:
        return _opened(found.data, [write for change in kept for write in found.in_file(change)])

    return found.look(chance.choice(COMMANDS), changes, opened, is_judged=True)


def _bytes(chance: Random, block: Random) -> Look:
    """Headers, notes and any bytes of a core; where it ends."""
    found = core_file(block.choice(_NAMES))
    start, end = chance.choice(((0, found.headers), (0, found.headers), found.notes, (0, len(found.data))))
    changes = damage_bytes(chance, start, end, len(found.data))
    return found.look(chance.choice(COMMANDS), changes, partial(_opened, found.data))


def _files(chance: Random, block: Random) -> Look:
    """The ELF files of the process, and the indexes of their symbols in the user's cache."""
    found = core_file(block.choice(_NAMES))
    root = sysroot(found.name)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    cached = sorted(path for path in folders.own_cache().rglob("*") if path.is_file())
    path = chance.choice(cached if cached and chance.random() < 0.3 else files)
    data = path.read_bytes()
    changes = damage_bytes(chance, *chance.choice(_spans(data) or [(0, len(data))]), len(data))
    command = chance.choice(COMMANDS)

    def run(kept: Sequence[Change]) -> Outcome:
        try:
            path.write_bytes(with_bytes(data, kept))
            return subjects.look(command, lambda: CoreTarget(str(core_path(found.name)), str(root)))
        finally:
            path.write_bytes(data)

    return Look(f"{found.name} with {path.name}", command, changes, run)


def _spans(data: bytes) -> list[tuple[int, int]]:
    """Where an ELF file has what is read of it: its headers and the sections that are not code."""
    if data[:4] != b"\x7fELF":
        return [(0, min(64, len(data))), (0, len(data))]
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    spans = [(0, 64), (64, 1024), (offset, min(len(data), offset + size * count))]
    for at in range(offset, offset + size * count, size):
        kind, flags, _, start, length = struct.unpack_from("<IQQQQ", data, at + 4)
        if kind != 8 and length and not flags & 4 and start + length <= len(data):
            spans.append((start, start + length))
    return [span for span in spans if span[0] < span[1]]


@cache
def sysroot(name: str) -> Path:
    """Copies of the files that the process of a core had mapped."""
    root = folders.scratch() / f"root-{name}"
    target = CoreTarget(str(core_path(name)))
    paths = {mapping.path for mapping in target.memory.maps() if mapping.path.startswith("/")}
    target.close()
    for path in sorted(paths):
        if (Path(path).is_file() and Path(path).stat().st_size < 8 << 20) or "python" in Path(path).name:
            copy = root / path.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    return root


KINDS = (Kind("core-memory", 5, _memory), Kind("core-bytes", 5, _bytes), Kind("files", 6, _files))
