"""Recordings damaged at chosen places."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gdbext.engine.targets.recording.recording import Recording, SparseBytes


def patched(recording: Recording, patches: Mapping[int, int]) -> Recording:
    """Other words at some addresses, all of which must be in the recording."""
    pieces = [bytearray(piece) for piece in recording.memory.pieces]
    for address, word in patches.items():
        places = [
            (start, piece)
            for start, piece in zip(recording.memory.starts, pieces)
            if start <= address <= start + len(piece) - 8
        ]
        for start, piece in places:
            piece[address - start : address - start + 8] = word.to_bytes(8, "little")
        assert places, f"{address:#x} is in the recording"
    return recording._replace(memory=SparseBytes(recording.memory.starts, list(map(bytes, pieces))))


def without_registers(recording: Recording, tids: Collection[int]) -> Recording:
    """The registers of some threads could not be read."""
    threads = [thread._replace(registers={}) if thread.tid in tids else thread for thread in recording.threads]
    return recording._replace(threads=tuple(threads))
