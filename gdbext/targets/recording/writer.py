"""A recording as the bytes of a file."""

from __future__ import annotations

from typing import Any

from gdbext.targets.base import MemoryMapping, Signal
from gdbext.targets.recording import container
from gdbext.targets.recording.recording import RecordedFile, RecordedNumbers, RecordedThread, Recording
from gdbext.targets.recording.sparse_bytes import SparseBytes


def encode(recording: Recording, preset: int = container.FAST) -> bytes:
    """The bytes of the file. Raises GdbextError when it would be too large."""
    return container.pack(*parts(recording), preset)


def parts(recording: Recording) -> tuple[dict[str, Any], list[SparseBytes]]:
    """The document and the blocks of a recording."""
    blocks = _Blocks()
    document = {
        "target": {
            "kind": recording.kind,
            "debugger": recording.debugger,
            "pid": recording.pid,
            "architecture": recording.architecture,
            "selected": recording.selected,
        },
        "made": {"command": recording.run.command, "taken": recording.run.taken, "gdbext": recording.run.version},
        "threads": [_thread(thread) for thread in recording.threads],
        "maps": [_mapping(mapping) for mapping in recording.maps],
        "auxv": {str(key): value for key, value in recording.auxv.items()},
        "environ": dict(recording.environ),
        "facts": dict(recording.facts),
        "kept": dict(recording.kept),
        "modules": [
            {"start": start, "status": module.status, "problem": module.problem, "file": module.file}
            for start, module in sorted(recording.modules.items())
        ],
        "files": [_file(file, blocks) for file in recording.files],
        "memory": blocks.add(recording.memory),
        "unreadable": sorted(recording.unreadable),
    }
    return document, blocks.all


class _Blocks:
    def __init__(self) -> None:
        self.all: list[SparseBytes] = []

    def add(self, block: SparseBytes) -> int:
        """Its number."""
        self.all.append(block)
        return len(self.all) - 1


def _thread(thread: RecordedThread) -> dict[str, Any]:
    return {
        "tid": thread.tid,
        "number": thread.number,
        "name": thread.name,
        "signal": _signal(thread.signal),
        "state": thread.kernel_state,
        "registers": dict(thread.registers),
        "problem": thread.problem,
        "help": thread.help,
        "float_registers": dict(thread.float_registers),
    }


def _signal(signal: Signal | None) -> dict[str, Any] | None:
    if signal is None:
        return None
    return {"number": signal.number, "name": signal.name, "code": signal.code, "address": signal.address}


def _mapping(mapping: MemoryMapping) -> list[Any]:
    return [
        mapping.start, mapping.end, mapping.offset, mapping.path, mapping.permissions, mapping.deleted,
        mapping.device, mapping.inode,
    ]  # fmt: skip


def _file(file: RecordedFile, blocks: _Blocks) -> dict[str, Any]:
    return {
        "path": file.path,
        "size": file.size,
        "contents": blocks.add(file.contents),
        "offsets": [[needle.hex(), *where, at] for (needle, *where), at in file.offsets.items()],
        "found": [[needle.hex(), *where, at] for (needle, *where), at in file.found.items()],
        "arrays": {
            kind: [_numbers(first, blocks), _numbers(second, blocks)]
            for kind, (first, second) in sorted(file.arrays.items())
        },
    }


def _numbers(numbers: RecordedNumbers, blocks: _Blocks) -> dict[str, int]:
    return {"count": numbers.length, "width": numbers.width, "contents": blocks.add(numbers.contents)}
