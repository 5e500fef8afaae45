"""Runs a BPF program one instruction at a time, as far as our counting programs use the machine.

Instructions: Documentation/bpf/standardization/instruction-set.rst; helpers: bpf-helpers(7). Addresses are numbers that
stand for a buffer and an offset into it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from gdbext.engine.arch import Architecture

_MASK = (1 << 64) - 1
_ROOM = 32
"""Bits of an address that are the offset."""


@dataclass
class Maps:
    """Contents by file descriptor; ``room``: how many entries a hash takes."""

    hashes: dict[int, dict[bytes, bytearray]] = field(default_factory=dict)
    arrays: dict[int, list[bytearray]] = field(default_factory=dict)
    room: int = 1 << 16


class Machine:
    """One run of a program: at a probe, in a thread."""

    def __init__(
        self, code: bytes, maps: Maps, architecture: Architecture, registers: dict[str, int], thread: int, cookie: int
    ) -> None:
        self._code = list(struct.iter_unpack("<BBhi", code))
        self._maps = maps
        self._thread, self._cookie = thread, cookie
        self._at = 0
        assert architecture.probing is not None
        saved = bytearray(256)
        for name, value in registers.items():
            if name:
                struct.pack_into("<Q", saved, architecture.probing.saved[name], value)
        self._buffers = [bytearray(), bytearray(512), saved]
        self._registers = [0] * 10 + [(1 << _ROOM) + 512]
        self._registers[1] = 2 << _ROOM

    def run(self) -> None:
        while not self.step():
            pass

    def step(self) -> bool:
        opcode, numbers, offset, immediate = self._code[self._at]
        target, source = numbers & 15, numbers >> 4
        self._at += 1
        registers = self._registers
        if opcode == 0x95:
            return True
        if opcode == 0x85:
            registers[0] = self._call(immediate)
            registers[1:6] = [0] * 5
        elif opcode == 0x18:
            registers[target] = immediate
            self._at += 1
        elif opcode & 7 == 5:
            left, right = registers[target], registers[source] if opcode & 8 else immediate & _MASK
            jumps = {0: True, 1: left == right, 2: left > right, 4: left & right, 5: left != right, 11: left <= right}
            self._at += offset if jumps[opcode >> 4] else 0
        elif opcode & 7 in (4, 7):
            left, right = registers[target], registers[source] if opcode & 8 else immediate
            values = {0: left + right, 1: left - right, 4: left | right, 5: left & right, 11: right}
            values |= {6: left << (right & 63), 7: left >> (right & 63)}
            registers[target] = (right & 0xFFFFFFFF if opcode == 0xBC else values[opcode >> 4]) & _MASK
        else:
            self._access(opcode, target, source, offset, immediate)
        return False

    def _access(self, opcode: int, target: int, source: int, offset: int, immediate: int) -> None:
        registers = self._registers
        base = registers[source] if opcode == 0x79 else registers[target]
        buffer, at = self._buffers[base >> _ROOM], (base & (1 << _ROOM) - 1) + offset
        old = struct.unpack_from("<Q", buffer, at)[0]
        if opcode == 0x79:
            registers[target] = old
        elif opcode == 0xDB and immediate:
            assert immediate == 0xF1
            if old == registers[0]:
                struct.pack_into("<Q", buffer, at, registers[source])
            registers[0] = old
        else:
            new = {0x7A: immediate & _MASK, 0x7B: registers[source], 0xDB: old + registers[source]}[opcode]
            struct.pack_into("<Q", buffer, at, new & _MASK)

    def _call(self, helper: int) -> int:
        if helper in (1, 2):
            return self._looked_up() if helper == 1 else self._updated()
        return {14: 77 << 32 | self._thread, 174: self._cookie}[helper]

    def _looked_up(self) -> int:
        descriptor, key = self._registers[1:3]
        if descriptor in self._maps.arrays:
            values, number = self._maps.arrays[descriptor], int.from_bytes(self._bytes(key, 4), "little")
            found = values[number] if number < len(values) else None
        else:
            found = self._maps.hashes[descriptor].get(self._bytes(key, 32 if descriptor == 3 else 8))
        if found is None:
            return 0
        self._buffers.append(found)
        return len(self._buffers) - 1 << _ROOM

    def _updated(self) -> int:
        descriptor, key, value = self._registers[1:4]
        into = self._maps.hashes[descriptor]
        if len(into) >= self._maps.room:
            return _MASK
        into[self._bytes(key, 32)] = bytearray(self._bytes(value, 8))
        return 0

    def _bytes(self, address: int, size: int) -> bytes:
        at = address & (1 << _ROOM) - 1
        return bytes(self._buffers[address >> _ROOM][at : at + size])
