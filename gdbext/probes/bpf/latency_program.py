"""The BPF programs that measure how long calls take: one at lookups, one at the ``ret`` instructions behind them.

A call is known by its thread and by where its return address is on the stack: at its lookup that is worked out as
everywhere (place_program.py), at its ``ret`` the stack pointer says it. So nothing is written to anybody's stack. The
kernel's own return probes put an address of theirs in place of the return address, and an exception of C++ that is
thrown through such a frame ends the process.

Durations are counted in buckets, four for each power of two nanoseconds.
"""

from __future__ import annotations

from gdbext.arch.base import Architecture
from gdbext.model.record import Record
from gdbext.probes.bpf import bpf_program as bpf
from gdbext.probes.bpf.place_program import MAX_PLACES, At, Filter, dispatch, return_address

PARTS_BITS = 2
"""A power of two is cut into 1 << PARTS_BITS buckets."""
ENTERED, NANOSECONDS = 510, 511
"""Buckets that are none: calls that began, the sum of all durations."""
OPEN_KEY, OPEN_VALUE, COUNT_KEY = 16, 32, 32
"""Bytes of: thread and address; time, operator, keyset, place; operator, keyset, place, bucket."""
_THREAD, _SLOT = -16, -8
_TIME, _ENTRY, _KEYSET, _PLACE, _BUCKET = -56, -48, -40, -32, -24
"""On the program's stack: the value of an open call, and, from _ENTRY on, the key of a count."""
_AMOUNT, _ZERO = -64, -72
_WORD = 64


class LatencyMaps(Record):
    """Descriptors of what the programs work with."""

    open: int
    counts: int
    lost: int
    wanted: int


def entry_program(architecture: Architecture, maps: LatencyMaps, only: Filter) -> bpf.Code:
    """A call begins."""
    return bpf.assemble((
        *dispatch(architecture, At(_ENTRY, _KEYSET, _THREAD), maps.wanted, only), *return_address(architecture),
        bpf.store(bpf.FRAME, _SLOT, bpf.B3), bpf.keep_bits(bpf.B7, MAX_PLACES - 1),
        bpf.store(bpf.FRAME, _PLACE, bpf.B7), bpf.store_constant(bpf.FRAME, _BUCKET, ENTERED),
        bpf.store_constant(bpf.FRAME, _AMOUNT, 1), *bpf.add_to(maps.counts, _ENTRY, _AMOUNT, "call"),
        bpf.call(bpf.TIME), bpf.store(bpf.FRAME, _TIME, bpf.B0),
        *bpf.put(maps.open, _THREAD, _TIME), bpf.jump_if_equal("end", bpf.B0, 0),
        *bpf.lose(maps.lost, _ZERO), bpf.Label("end"), bpf.end(),
    ))  # fmt: skip


def exit_program(architecture: Architecture, maps: LatencyMaps) -> bpf.Code:
    """A function returns: that of a call that began, or another one."""
    saved = architecture.probing.saved if architecture.probing is not None else {}
    return bpf.assemble((
        bpf.move(bpf.B6, bpf.B1), bpf.call(bpf.TIME), bpf.move(bpf.B9, bpf.B0),
        bpf.call(bpf.CURRENT_PID_TGID), bpf.low_word(bpf.B0), bpf.store(bpf.FRAME, _THREAD, bpf.B0),
        bpf.load(bpf.B1, bpf.B6, saved.get(architecture.stack_pointer, 0)), bpf.store(bpf.FRAME, _SLOT, bpf.B1),
        *bpf.look_up(maps.open, _THREAD), bpf.jump_if_equal("end", bpf.B0, 0),
        bpf.load(bpf.B1, bpf.B0, 0), bpf.subtract(bpf.B9, bpf.B1),
        *(part for at in (_ENTRY, _KEYSET, _PLACE) for part in _copied(at)),
        bpf.load_map(bpf.B1, maps.open), bpf.move(bpf.B2, bpf.FRAME), bpf.increase(bpf.B2, _THREAD),
        bpf.call(bpf.MAP_DELETE),
        *_bucket(), bpf.store_constant(bpf.FRAME, _AMOUNT, 1), *bpf.add_to(maps.counts, _ENTRY, _AMOUNT, "bucket"),
        bpf.store_constant(bpf.FRAME, _BUCKET, NANOSECONDS), bpf.store(bpf.FRAME, _AMOUNT, bpf.B9),
        *bpf.add_to(maps.counts, _ENTRY, _AMOUNT, "sum"), bpf.jump("end"),
        *bpf.lose(maps.lost, _ZERO), bpf.Label("end"), bpf.end(),
    ))  # fmt: skip


def _copied(at: int) -> list[bpf.Part]:
    """From the open call to the key of the count."""
    return [bpf.load(bpf.B1, bpf.B0, at - _TIME), bpf.store(bpf.FRAME, at, bpf.B1)]


def _bucket() -> list[bpf.Part]:
    """_BUCKET: the one of the duration in B9; range_of() is the inverse."""
    parts: list[bpf.Part] = [bpf.move(bpf.B1, bpf.B9), bpf.constant(bpf.B2, 0)]
    step = _WORD // 2
    while step:
        parts += [
            bpf.move(bpf.B3, bpf.B1), bpf.shift_right(bpf.B3, step), bpf.jump_if_equal(f"below {step}", bpf.B3, 0),
            bpf.move(bpf.B1, bpf.B3), bpf.increase(bpf.B2, step), bpf.Label(f"below {step}"),
        ]  # fmt: skip
        step //= 2
    return [
        *parts, bpf.move(bpf.B1, bpf.B9), bpf.shift_left(bpf.B1, PARTS_BITS), bpf.shift_right_by(bpf.B1, bpf.B2),
        bpf.keep_bits(bpf.B1, (1 << PARTS_BITS) - 1), bpf.shift_left(bpf.B2, PARTS_BITS), bpf.plus(bpf.B1, bpf.B2),
        bpf.store(bpf.FRAME, _BUCKET, bpf.B1),
    ]  # fmt: skip


def range_of(bucket: int) -> tuple[float, float]:
    """The nanoseconds that a bucket counts: from the first up to, not including, the second."""
    power, part = divmod(bucket, 1 << PARTS_BITS)
    unit = 2.0**power / (1 << PARTS_BITS)
    return ((1 << PARTS_BITS) + part) * unit, ((1 << PARTS_BITS) + part + 1) * unit
