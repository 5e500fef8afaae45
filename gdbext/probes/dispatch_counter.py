"""Counts dispatches in the kernel: one number for each (place, keyset, thread) that was seen."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from gdbext.arch.base import Architecture
from gdbext.errors import ProbesRefused
from gdbext.probes import bpf_program as bpf
from gdbext.probes.kernel import PER_CPU_ARRAY, PER_CPU_HASH, Bpf, Place
from gdbext.probes.places import LOOKUP_ARGUMENTS, RedispatchPlace

MAX_KEYS = 1 << 16
"""Combinations that are counted; a busy job has a few thousand."""
_KEY = struct.Struct("<QQQ")
_KEY_AT, _KEYSET_AT, _THREAD_AT, _ONE_AT, _LOST_AT = -24, -16, -8, -32, -40
"""Where the programs keep things on their stack, from its end."""
_HIDDEN, _NO_KEYSET = 1 << 30, 1 << 29
"""Bits of a cookie: the keyset is in the second argument register; or nobody knows where it is."""
_INDEX = _NO_KEYSET - 1
_OPERATOR_ENTRY = 1 << 16
"""What is counted at a lookup is known by an address, which is larger; at a redispatch by a number that is smaller."""


class DispatchCount(NamedTuple):
    """How often one thread dispatched an operator with a keyset: ``entry`` is its OperatorEntry."""

    entry: int
    keyset: int | None
    tid: int
    event: str
    times: int


class DispatchCounter:
    """Counts from construction to close(); a context manager. Raises ProbesRefused."""

    def __init__(
        self, architecture: Architecture, pid: int, path: str, lookup: int | None, places: Sequence[RedispatchPlace]
    ) -> None:
        probing = architecture.probing
        if probing is None:
            raise ProbesRefused(
                f"kernel probes are not supported on {architecture.title}",
                why="where they are cheap is known for each architecture by itself",
                help="trace by breakpoints: dispatch-trace OP",
            )
        self._places = places
        self._descriptors: list[int] = []
        kernel = Bpf(probing.bpf_call)
        try:
            self._counts = kernel.map(PER_CPU_HASH, _KEY.size, MAX_KEYS)
            self._lost = kernel.map(PER_CPU_ARRAY, 4, 1)
            self._descriptors += [self._counts.descriptor, self._lost.descriptor]
            arguments = [probing.saved[name] for name in architecture.argument_registers]
            if lookup is not None:
                program = self._program(kernel, at_lookup(arguments))
                self._descriptors.append(kernel.attach(program, path, [Place(lookup, 0)], pid))
            if places:
                program = self._program(kernel, at_redispatch(arguments))
                chosen = [Place(place.offset, _cookie(number, place)) for number, place in enumerate(places)]
                self._descriptors.append(kernel.attach(program, path, chosen, pid))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic()

    def __enter__(self) -> DispatchCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _program(self, kernel: Bpf, before: bpf.Code) -> int:
        program = kernel.program(before + counting(self._counts.descriptor, self._lost.descriptor))
        self._descriptors.append(program)
        return program

    def counts(self) -> list[DispatchCount]:
        """What was counted so far. Raises OSError."""
        found = []
        for key, count in self._counts.totals():
            where, keyset, tid = _KEY.unpack(key)
            if where >= _OPERATOR_ENTRY:
                found.append(DispatchCount(where, keyset, tid, "call", count))
            else:
                place = self._places[where]
                known = None if place.keyset is None else keyset
                found.append(DispatchCount(place.operator.address, known, tid, "redispatch", count))
        return found

    def lost(self) -> int:
        """Dispatches that were seen and not counted, since there were too many combinations. Raises OSError."""
        return sum(count for _, count in self._lost.totals())

    def close(self) -> None:
        """Take all probes away; idempotent."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _cookie(number: int, place: RedispatchPlace) -> int:
    return number | (_NO_KEYSET if place.keyset is None else _HIDDEN if place.keyset else 0)


def at_lookup(arguments: Sequence[int]) -> bpf.Code:
    """``this`` and the keyset of ``OperatorEntry::lookup`` into the key; ``arguments``: offsets in struct pt_regs."""
    parts = [bpf.move(bpf.R6, bpf.R1)]
    for offset, at in zip(arguments[:LOOKUP_ARGUMENTS], (_KEY_AT, _KEYSET_AT)):
        parts += [bpf.load(bpf.R1, bpf.R6, offset), bpf.store(bpf.FRAME, at, bpf.R1)]
    return b"".join(parts)


def at_redispatch(arguments: Sequence[int]) -> bpf.Code:
    """The place's number, and the keyset where the cookie says it is, into the key."""
    first, second = ([bpf.load(bpf.R1, bpf.R6, offset)] for offset in arguments[:2])
    known = bpf.if_bit(bpf.R7, _HIDDEN, second, first)
    keyset = bpf.if_bit(bpf.R7, _NO_KEYSET, [bpf.constant(bpf.R1, 0)], [known])
    return b"".join((
        bpf.move(bpf.R6, bpf.R1), bpf.call(bpf.ATTACH_COOKIE), bpf.move(bpf.R7, bpf.R0),
        keyset, bpf.store(bpf.FRAME, _KEYSET_AT, bpf.R1),
        bpf.keep_bits(bpf.R7, _INDEX), bpf.store(bpf.FRAME, _KEY_AT, bpf.R7),
    ))  # fmt: skip


def counting(counts: int, lost: int) -> bpf.Code:
    """Adds the thread to the key and 1 to its counter; a key that finds no room counts as lost."""
    key = [bpf.load_map(bpf.R1, counts), bpf.move(bpf.R2, bpf.FRAME), bpf.increase(bpf.R2, _KEY_AT)]
    one_more = [bpf.load(bpf.R1, bpf.R0, 0), bpf.increase(bpf.R1, 1), bpf.store(bpf.R0, 0, bpf.R1)]
    miss = [
        bpf.store_constant(bpf.FRAME, _LOST_AT, 0), bpf.load_map(bpf.R1, lost), bpf.move(bpf.R2, bpf.FRAME),
        bpf.increase(bpf.R2, _LOST_AT), bpf.call(bpf.MAP_LOOKUP), bpf.if_zero(bpf.R0, [], one_more),
    ]  # fmt: skip
    first = [
        bpf.store_constant(bpf.FRAME, _ONE_AT, 1), *key, bpf.move(bpf.R3, bpf.FRAME), bpf.increase(bpf.R3, _ONE_AT),
        bpf.constant(bpf.R4, 0), bpf.call(bpf.MAP_UPDATE), bpf.if_zero(bpf.R0, [], miss),
    ]  # fmt: skip
    return b"".join((
        bpf.call(bpf.CURRENT_PID_TGID), bpf.low_word(bpf.R0), bpf.store(bpf.FRAME, _THREAD_AT, bpf.R0),
        *key, bpf.call(bpf.MAP_LOOKUP), bpf.if_zero(bpf.R0, first, one_more), bpf.end(),
    ))  # fmt: skip
