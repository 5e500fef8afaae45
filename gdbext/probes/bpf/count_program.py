"""The BPF program that counts dispatches.

Each place has a cell on each processor, which counts the first operator and keyset that came by there: an array needs
no call of a helper, each of which takes 15 ns where returns are guarded against speculation. Everything else, and
everything where threads or lines are told apart, is counted in a map, by thread: the kernel may preempt a program, but
not for another one in the same thread, so that nothing is counted by two at once there. In a cell it may be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gdbext.arch.base import Architecture
from gdbext.model.record import Record
from gdbext.probes.bpf import bpf_program as bpf
from gdbext.probes.bpf.place_program import EVERYTHING, MAX_PLACES, At, Filter, looked_up, thread
from gdbext.probes.python_lines import FramePath, find_line

KEY, LINE = struct.Struct("<QQQQ"), struct.Struct("<QQ")
"""What is counted in the map: number of the place, OperatorEntry* (0: the place's own), keyset, thread; and with the
line of Python, code object and instruction."""
CELL = struct.Struct("<QQQ")
"""The operator's mark, the keyset's mark, the count."""
_PLACE, _ENTRY, _KEYSET, _THREAD, _CODE, _INSTRUCTION = -48, -40, -32, -24, -16, -8
"""The key on the program's stack, from its end,"""
_ONE, _ZERO, _SCRATCH = -56, -64, -72
"""and what else it needs there."""
_AT = At(_ENTRY, _KEYSET, _THREAD)
_OPERATOR_BIT = 1
"""What makes an address a mark: it is even, and may be 0."""


class CounterMaps(Record):
    """Descriptors of what the program works with; ``cells`` is None where threads or lines are told apart."""

    counts: int
    lost: int
    wanted: int
    states: int
    cells: int | None = None


def program(
    architecture: Architecture, maps: CounterMaps, path: FramePath | None = None, only: Filter = EVERYTHING
) -> bpf.Code:
    """Adds 1 to the counter of (place, operator, keyset, thread, line); a key that finds no room counts as lost."""
    line = [] if path is None else find_line(path, maps.states, _THREAD, _CODE, _INSTRUCTION, _SCRATCH)
    first = thread(_AT, only) if maps.cells is None or only.tid is not None else []
    later = [] if first else thread(_AT)
    return bpf.assemble((
        bpf.move(bpf.B6, bpf.B1), *first, *looked_up(architecture, _AT, maps.wanted, only), *line,
        bpf.keep_bits(bpf.B7, MAX_PLACES - 1), bpf.store(bpf.FRAME, _PLACE, bpf.B7),
        *([] if maps.cells is None else _in_cell(maps.cells)), *later,
        bpf.store_constant(bpf.FRAME, _ONE, 1), *bpf.add_to(maps.counts, _PLACE, _ONE, "dispatch"), bpf.jump("end"),
        *bpf.lose(maps.lost, _ZERO), bpf.Label("end"), bpf.end(),
    ))  # fmt: skip


def _in_cell(cells: int) -> list[bpf.Part]:
    """Counts in the place's cell, and jumps to "end", if that is the operator's and the keyset's."""
    return [
        *bpf.look_up(cells, _PLACE), bpf.jump_if_equal("no cell", bpf.B0, 0), bpf.move(bpf.B8, bpf.B0),
        bpf.load(bpf.B1, bpf.FRAME, _ENTRY), bpf.set_bits(bpf.B1, _OPERATOR_BIT), *_claim("operator's", 0),
        bpf.load(bpf.B1, bpf.FRAME, _KEYSET), bpf.increase(bpf.B1, 1), bpf.jump_if_equal("no cell", bpf.B1, 0),
        *_claim("keyset's", 8),
        bpf.constant(bpf.B1, 1), bpf.add_atomically(bpf.B8, 16, bpf.B1), bpf.jump("end"),
        bpf.Label("no cell"),
    ]  # fmt: skip


def _claim(name: str, offset: int) -> list[bpf.Part]:
    """On to "no cell" unless the mark in B1 stands in the cell, in B8, or nothing stood there; then it does now. A
    mark stays for ever."""
    return [
        bpf.load(bpf.B0, bpf.B8, offset), bpf.jump_if_same(name, bpf.B0, bpf.B1),
        bpf.jump_unless_equal("no cell", bpf.B0, 0),
        bpf.exchange_if_equal(bpf.B8, offset, bpf.B1), bpf.jump_if_equal(name, bpf.B0, 0),
        bpf.jump_if_same(name, bpf.B0, bpf.B1), bpf.jump("no cell"),
        bpf.Label(name),
    ]  # fmt: skip


def cell_counts(data: bytes) -> Iterator[tuple[int, int, int] | None]:
    """OperatorEntry* (0: the place's own), keyset and count of each cell; None of one that counted nothing yet."""
    for operator, keyset, count in CELL.iter_unpack(data):
        yield (operator & ~_OPERATOR_BIT, keyset - 1, count) if operator and keyset and count else None
