"""The BPF programs that measure how long calls take: one at lookups, one at the ``ret`` instructions behind them.

A call is known by its thread and by where its return address is on the stack: at its lookup that is worked out as
everywhere (place_program.py), at its ``ret`` the stack pointer says it. So nothing is written to anybody's stack. The
kernel's own return probes put an address of theirs in place of the return address, and an exception of C++ that is
thrown through such a frame ends the process.

Durations are counted in buckets, four for each power of two nanoseconds.

The BPF program that counts dispatches.

Each place has a cell on each processor, which counts the first operator and keyset that came by there: an array needs
no call of a helper, each of which takes 15 ns where returns are guarded against speculation. Everything else, and
everything where threads or lines are told apart, is counted in a map, by thread: the kernel may preempt a program, but
not for another one in the same thread, so that nothing is counted by two at once there. In a cell it may be.
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
_AT = place_program.At(_ENTRY, _KEYSET, _THREAD)
_OPERATOR_BIT = 1
"""The bit that makes an address a mark: it is even, and may be 0."""


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
    first = place_program.thread(_AT, only) if maps.cells is None or only.tid else []
    later = [] if first else place_program.thread(_AT)
    return bpf.assemble(
        (
            bpf.move(bpf.B6, bpf.B1),
            *first,
            *place_program.looked_up(architecture, _AT, maps.wanted, only),
            *line,
            bpf.keep_bits(bpf.B7, place_program.MAX_PLACES - 1),
            bpf.store(bpf.FRAME, _PLACE, bpf.B7),
            *([] if maps.cells is None else _in_cell(maps.cells)),
            *later,
            bpf.store_constant(bpf.FRAME, _ONE, 1),
            *bpf.add_to(maps.counts, _PLACE, _ONE, "dispatch"),
            bpf.jump("end"),
            *bpf.lose(maps.lost, _ZERO),
            bpf.Label("end"),
            bpf.end(),
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
    """Claim a cell: go on to "no cell" unless the mark in B1 stands in the cell, in B8, or nothing stood there; then it
    does now. A mark stays for ever."""
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
OPEN_KEY, OPEN_VALUE, COUNT_KEY = 16, 32, 32
"""Bytes of: thread and address; time, operator, keyset, place; operator, keyset, place, bucket."""
_LATENCY_THREAD, _SLOT = -16, -8
_TIME, _LATENCY_ENTRY, _LATENCY_KEYSET, _LATENCY_PLACE, _BUCKET = -56, -48, -40, -32, -24
"""Places on the program's stack: the value of an open call, and, from _ENTRY on, the key of a count."""
_AMOUNT, _LATENCY_ZERO = -64, -72
_WORD = 64


class LatencyMaps(NamedTuple):
    """Descriptors of what the programs work with."""

    open: int
    counts: int
    lost: int
    wanted: int


def entry_program(architecture: Architecture, maps: LatencyMaps, only: place_program.Filter) -> bpf.Code:
    """The program at the entry of a call."""
    return bpf.assemble(
        (
            *place_program.dispatch(
                architecture, place_program.At(_LATENCY_ENTRY, _LATENCY_KEYSET, _LATENCY_THREAD), maps.wanted, only
            ),
            *place_program.return_address(architecture),
            bpf.store(bpf.FRAME, _SLOT, bpf.B3),
            bpf.keep_bits(bpf.B7, place_program.MAX_PLACES - 1),
            bpf.store(bpf.FRAME, _LATENCY_PLACE, bpf.B7),
            bpf.store_constant(bpf.FRAME, _BUCKET, ENTERED),
            bpf.store_constant(bpf.FRAME, _AMOUNT, 1),
            *bpf.add_to(maps.counts, _LATENCY_ENTRY, _AMOUNT, "call"),
            bpf.call(bpf.TIME),
            bpf.store(bpf.FRAME, _TIME, bpf.B0),
            *bpf.put(maps.open, _LATENCY_THREAD, _TIME),
            bpf.jump_if_equal("end", bpf.B0, 0),
            *bpf.lose(maps.lost, _LATENCY_ZERO),
            bpf.Label("end"),
            bpf.end(),
        )
    )


def exit_program(architecture: Architecture, maps: LatencyMaps) -> bpf.Code:
    """A function returns: that of a call that began, or another one."""
    saved = architecture.probing.saved if architecture.probing else {}
    return bpf.assemble(
        (
            bpf.move(bpf.B6, bpf.B1),
            bpf.call(bpf.TIME),
            bpf.move(bpf.B9, bpf.B0),
            bpf.call(bpf.CURRENT_PID_TGID),
            bpf.low_word(bpf.B0),
            bpf.store(bpf.FRAME, _LATENCY_THREAD, bpf.B0),
            bpf.load(bpf.B1, bpf.B6, saved.get(architecture.stack_pointer, 0)),
            bpf.store(bpf.FRAME, _SLOT, bpf.B1),
            *bpf.look_up(maps.open, _LATENCY_THREAD),
            bpf.jump_if_equal("end", bpf.B0, 0),
            bpf.load(bpf.B1, bpf.B0, 0),
            bpf.subtract(bpf.B9, bpf.B1),
            *(part for at in (_LATENCY_ENTRY, _LATENCY_KEYSET, _LATENCY_PLACE) for part in _copied(at)),
            bpf.load_map(bpf.B1, maps.open),
            bpf.move(bpf.B2, bpf.FRAME),
            bpf.increase(bpf.B2, _LATENCY_THREAD),
            bpf.call(bpf.MAP_DELETE),
            *_bucket(),
            bpf.store_constant(bpf.FRAME, _AMOUNT, 1),
            *bpf.add_to(maps.counts, _LATENCY_ENTRY, _AMOUNT, "bucket"),
            bpf.store_constant(bpf.FRAME, _BUCKET, NANOSECONDS),
            bpf.store(bpf.FRAME, _AMOUNT, bpf.B9),
            *bpf.add_to(maps.counts, _LATENCY_ENTRY, _AMOUNT, "sum"),
            bpf.jump("end"),
            *bpf.lose(maps.lost, _LATENCY_ZERO),
            bpf.Label("end"),
            bpf.end(),
        )
    )


def _copied(at: int) -> list[bpf.Part]:
    """Instructions that copy from the open call to the key of the count."""
    return [bpf.load(bpf.B1, bpf.B0, at - _TIME), bpf.store(bpf.FRAME, at, bpf.B1)]


def _bucket() -> list[bpf.Part]:
    """_BUCKET: the one of the duration in B9; range_of() is the inverse."""
    parts: list[bpf.Part] = [bpf.move(bpf.B1, bpf.B9), bpf.constant(bpf.B2, 0)]
    step = _WORD // 2
    while step:
        parts += [
            bpf.move(bpf.B3, bpf.B1),
            bpf.shift_right(bpf.B3, step),
            bpf.jump_if_equal(f"below {step}", bpf.B3, 0),
            bpf.move(bpf.B1, bpf.B3),
            bpf.increase(bpf.B2, step),
            bpf.Label(f"below {step}"),
        ]
        step //= 2
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
