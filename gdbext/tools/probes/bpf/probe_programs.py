"""The BPF programs that count dispatches and measure how long calls take.

Counting: each place has a cell on each CPU, which counts the first operator and keyset that came by there: an array
needs no call of a helper, each of which takes 15 ns where returns are guarded against speculation. Everything else, and
everything where threads or lines are told apart, is counted in a map, by thread: the kernel may preempt a program, but
not for another one in the same thread, so that nothing is counted by two at once there. In a cell it may be.

Latency: one program at lookups, one at the ``ret`` instructions of their functions. A call is known by its thread and
the address of its return address: at its lookup that is worked out as everywhere (place_program.py), at its ``ret`` it
is the stack pointer. So nothing is written to the process's stack. The kernel's own return probes put an address of
theirs in place of the return address, and an exception of C++ that is thrown through such a frame ends the process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf import place_program

KEY, LINE = struct.Struct("<QQQQ"), struct.Struct("<QQ")
"""The key and the line of a count in the map: number of the place, OperatorEntry* (0: the place's own), keyset, thread;
and with the line of Python, code object and instruction."""
CELL = struct.Struct("<QQQ")
"""The operator's mark, the keyset's mark, the count."""
_PLACE, _ENTRY, _KEYSET, _THREAD, _CODE, _INSTRUCTION = -48, -40, -32, -24, -16, -8
"""The key on the program's stack, from its end,"""
_ONE, _ZERO, _SCRATCH = -56, -64, -72
"""and what else it needs there."""
_AT = place_program.StackPlaces(_ENTRY, _KEYSET, _THREAD)
_OPERATOR_BIT = 1
"""Makes an address a mark: an address is even, and may be 0."""


class CounterMaps(NamedTuple):
    """Descriptors of what the program works with; ``cells`` is None where threads or lines are told apart."""

    counts: int
    lost: int
    wanted: int
    states: int
    cells: int | None = None


def program(
    architecture: Architecture,
    maps: CounterMaps,
    path: place_program.FramePath | None = None,
    only: place_program.Filter = place_program.EVERYTHING,
) -> bpf.Code:
    """Adds 1 to the counter of (place, operator, keyset, thread, line); a key that finds no room counts as lost."""
    line = place_program.find_line(path, maps.states, _THREAD, _CODE, _INSTRUCTION, _SCRATCH) if path else []
    first = place_program.load_thread(_AT, only) if maps.cells is None or only.tid else []
    return bpf.assemble(
        (
            bpf.move(bpf.B6, bpf.B1),
            *first,
            *place_program.load_lookup(architecture, _AT, maps.wanted, only),
            *line,
            bpf.keep_bits(bpf.B7, place_program.MAX_PLACES - 1),
            bpf.store(bpf.FRAME, _PLACE, bpf.B7),
            *([] if maps.cells is None else _in_cell(maps.cells)),
            *([] if first else place_program.load_thread(_AT)),
            bpf.store_constant(bpf.FRAME, _ONE, 1),
            *bpf.add_to(maps.counts, _PLACE, _ONE, "dispatch"),
            bpf.jump("end"),
            *bpf.count_lost(maps.lost, _ZERO),
        )
    )


def _in_cell(cells: int) -> list[bpf.Part]:
    """Counts in the place's cell, and jumps to "end", if that is the operator's and the keyset's."""
    return [
        *bpf.look_up(cells, _PLACE),
        bpf.jump_if_equal("no cell", bpf.B0, 0),
        bpf.move(bpf.B8, bpf.B0),
        bpf.load(bpf.B1, bpf.FRAME, _ENTRY),
        bpf.set_bits(bpf.B1, _OPERATOR_BIT),
        *_claim("operator's", 0),
        bpf.load(bpf.B1, bpf.FRAME, _KEYSET),
        bpf.increase(bpf.B1, 1),
        bpf.jump_if_equal("no cell", bpf.B1, 0),
        *_claim("keyset's", 8),
        bpf.constant(bpf.B1, 1),
        bpf.add_atomically(bpf.B8, 16, bpf.B1),
        bpf.jump("end"),
        bpf.Label("no cell"),
    ]


def _claim(name: str, offset: int) -> list[bpf.Part]:
    """Jump to "no cell" unless the cell, in B8, has the mark in B1 at ``offset``, or nothing: then it gets the mark,
    for ever. ``name`` is the label behind."""
    return [
        bpf.load(bpf.B0, bpf.B8, offset),
        bpf.jump_if_same(name, bpf.B0, bpf.B1),
        bpf.jump_unless_equal("no cell", bpf.B0, 0),
        bpf.exchange_if_equal(bpf.B8, offset, bpf.B1),
        bpf.jump_if_equal(name, bpf.B0, 0),
        bpf.jump_if_same(name, bpf.B0, bpf.B1),
        bpf.jump("no cell"),
        bpf.Label(name),
    ]


def cell_counts(data: bytes) -> Iterator[tuple[int, int, int] | None]:
    """OperatorEntry* (0: the place's own), keyset and count of each cell; None of one that counted nothing yet."""
    for operator, keyset, count in CELL.iter_unpack(data):
        yield (operator & ~_OPERATOR_BIT, keyset - 1, count) if operator and keyset and count else None


PARTS_BITS = 2
"""A power of two is cut into 1 << PARTS_BITS buckets."""
ENTERED, NANOSECONDS = 510, 511
"""Buckets that are none: calls that began, the sum of all durations."""
OPEN_KEY, OPEN_VALUE = 16, 32
"""Bytes of: thread and address; time, operator, keyset, place."""
_CALL_THREAD, _SLOT = -16, -8
_TIME, _CALL_ENTRY, _CALL_KEYSET, _CALL_PLACE, _BUCKET = -56, -48, -40, -32, -24
"""Places on the program's stack: the value of an open call, and, from _ENTRY on, the key of a count."""
_AMOUNT, _NO_KEY = -64, -72
_CALL_AT = place_program.StackPlaces(_CALL_ENTRY, _CALL_KEYSET, _CALL_THREAD)


class LatencyMaps(NamedTuple):
    """Descriptors of what the programs work with."""

    open: int
    counts: int
    lost: int
    wanted: int


def entry_program(architecture: Architecture, maps: LatencyMaps, only: place_program.Filter) -> bpf.Code:
    """The program at the lookup of a call."""
    return bpf.assemble(
        (
            *place_program.load_dispatch(architecture, _CALL_AT, maps.wanted, only),
            *place_program.return_address(architecture),
            bpf.store(bpf.FRAME, _SLOT, bpf.B3),
            bpf.keep_bits(bpf.B7, place_program.MAX_PLACES - 1),
            bpf.store(bpf.FRAME, _CALL_PLACE, bpf.B7),
            bpf.store_constant(bpf.FRAME, _BUCKET, ENTERED),
            bpf.store_constant(bpf.FRAME, _AMOUNT, 1),
            *bpf.add_to(maps.counts, _CALL_ENTRY, _AMOUNT, "call"),
            bpf.call(bpf.TIME),
            bpf.store(bpf.FRAME, _TIME, bpf.B0),
            *bpf.put(maps.open, _CALL_THREAD, _TIME),
            bpf.jump_if_equal("end", bpf.B0, 0),
            *bpf.count_lost(maps.lost, _NO_KEY),
        )
    )


def exit_program(architecture: Architecture, maps: LatencyMaps) -> bpf.Code:
    """The program at a ``ret``: of a function whose call began, or of another one."""
    stack_pointer = place_program.saved_registers(architecture).get(architecture.stack_pointer, 0)
    copied = (_CALL_ENTRY, _CALL_KEYSET, _CALL_PLACE)  # from the open call to the key of the count
    return bpf.assemble(
        (
            bpf.move(bpf.B6, bpf.B1),
            bpf.call(bpf.TIME),
            bpf.move(bpf.B9, bpf.B0),
            *place_program.load_thread(_CALL_AT),
            bpf.copy_word(bpf.FRAME, _SLOT, bpf.B6, stack_pointer),
            *bpf.look_up(maps.open, _CALL_THREAD),
            bpf.jump_if_equal("end", bpf.B0, 0),
            bpf.load(bpf.B1, bpf.B0, 0),
            bpf.subtract(bpf.B9, bpf.B1),
            *(bpf.copy_word(bpf.FRAME, at, bpf.B0, at - _TIME) for at in copied),
            bpf.load_map(bpf.B1, maps.open),
            bpf.address(bpf.B2, bpf.FRAME, _CALL_THREAD),
            bpf.call(bpf.MAP_DELETE),
            *_bucket(),
            bpf.store_constant(bpf.FRAME, _AMOUNT, 1),
            *bpf.add_to(maps.counts, _CALL_ENTRY, _AMOUNT, "bucket"),
            bpf.store_constant(bpf.FRAME, _BUCKET, NANOSECONDS),
            bpf.store(bpf.FRAME, _AMOUNT, bpf.B9),
            *bpf.add_to(maps.counts, _CALL_ENTRY, _AMOUNT, "sum"),
            bpf.jump("end"),
            *bpf.count_lost(maps.lost, _NO_KEY),
        )
    )


def _bucket() -> list[bpf.Part]:
    """Store the bucket of the duration in B9 at _BUCKET; range_of() is the inverse."""
    parts: list[bpf.Part] = [bpf.move(bpf.B1, bpf.B9), bpf.constant(bpf.B2, 0)]
    for step in (32, 16, 8, 4, 2, 1):  # B2: the logarithm, by halving the word
        parts += [
            bpf.move(bpf.B3, bpf.B1),
            bpf.shift_right(bpf.B3, step),
            bpf.jump_if_equal(f"below {step}", bpf.B3, 0),
            bpf.move(bpf.B1, bpf.B3),
            bpf.increase(bpf.B2, step),
            bpf.Label(f"below {step}"),
        ]
    return [
        *parts,
        bpf.move(bpf.B1, bpf.B9),
        bpf.shift_left(bpf.B1, PARTS_BITS),
        bpf.shift_right_by(bpf.B1, bpf.B2),
        bpf.keep_bits(bpf.B1, (1 << PARTS_BITS) - 1),
        bpf.shift_left(bpf.B2, PARTS_BITS),
        bpf.plus(bpf.B1, bpf.B2),
        bpf.store(bpf.FRAME, _BUCKET, bpf.B1),
    ]


def range_of(bucket: int) -> tuple[float, float]:
    """The nanoseconds that a bucket counts: from the first up to, not including, the second."""
    power, part = divmod(bucket, 1 << PARTS_BITS)
    unit = 2.0**power / (1 << PARTS_BITS)
    return ((1 << PARTS_BITS) + part) * unit, ((1 << PARTS_BITS) + part + 1) * unit
