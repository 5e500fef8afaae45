"""What all our BPF programs begin with: which operator is dispatched with which keyset, and is it wanted?

One program serves all places. What differs between them is in the place's cookie: the registers, and how far the
return address is from the stack or frame pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gdbext.arch.base import Architecture
from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.model.record import Record
from gdbext.probes.bpf import bpf_program as bpf
from gdbext.probes.places.dispatch_site import DispatchSite
from gdbext.torch.values.key_names import KeysetTest

PLACE_BITS = 16
MAX_PLACES = 1 << PLACE_BITS
_REGISTER = 31
_ENTRY_AT, _KEYSET_AT = 16, 21
"""Bits of the cookie: the place's number, the numbers of two registers (0: none), then"""
_FILTERED, _BY_FRAME_POINTER = 1 << 26, 1 << 27
"""and the distance of the return address in the upper half."""


class TracePlace(Record):
    """A site in a file. ``operator``: the OperatorEntry* that it belongs to, 0 where the site's register has it.

    ``filtered``: other operators pass it, too, and only those that are wanted count.
    """

    path: str
    site: DispatchSite
    operator: int = 0
    filtered: bool = False

    @property
    def event(self) -> DispatchEvent:
        """How the dispatcher is entered there."""
        return self.site.event


class At(Record):
    """Where on the program's stack things are put: OperatorEntry* (0: the place's own), keyset, thread."""

    entry: int
    keyset: int
    thread: int


class Filter(Record):
    """Which dispatches the kernel shows, beside those of the operators that are wanted: of one thread, of keysets that
    pass these tests."""

    tid: int | None = None
    keyset: tuple[KeysetTest, ...] = ()


EVERYTHING = Filter()
"""Nothing is left out."""


def cookie(architecture: Architecture, number: int, place: TracePlace) -> int:
    """What the program is told of a place."""
    names, site = _names(architecture), place.site
    value = number | _number(names, site.entry) << _ENTRY_AT | _number(names, site.keyset) << _KEYSET_AT
    value |= _FILTERED if place.filtered else 0
    value |= _BY_FRAME_POINTER if site.base == architecture.frame_pointer else 0
    return (site.slot & 0xFFFFFFFF) << 32 | value


def dispatch(architecture: Architecture, at: At, wanted: int, only: Filter = EVERYTHING) -> list[bpf.Part]:
    """B6: the registers at the place, B7: the cookie; the rest is on the stack. Jumps to "end" for what is not wanted.

    ``wanted``: the map of the OperatorEntries that filtered places show.
    """
    return [bpf.move(bpf.B6, bpf.B1), *thread(at, only), *looked_up(architecture, at, wanted, only)]


def thread(at: At, only: Filter = EVERYTHING) -> list[bpf.Part]:
    """The thread onto the stack; on to "end" with one that is not wanted."""
    others = [] if only.tid is None else [bpf.jump_unless_equal("end", bpf.B0, only.tid)]
    return [bpf.call(bpf.CURRENT_PID_TGID), bpf.low_word(bpf.B0), *others, bpf.store(bpf.FRAME, at.thread, bpf.B0)]


def looked_up(architecture: Architecture, at: At, wanted: int, only: Filter = EVERYTHING) -> list[bpf.Part]:
    """From the registers, in B6: B7, the cookie; OperatorEntry* and keyset onto the stack. Otherwise as dispatch()."""
    return [
        bpf.move(bpf.B1, bpf.B6), bpf.call(bpf.ATTACH_COOKIE), bpf.move(bpf.B7, bpf.B0),
        *_chosen(architecture, "entry", _ENTRY_AT), bpf.store(bpf.FRAME, at.entry, bpf.B1),
        *_chosen(architecture, "keyset", _KEYSET_AT), bpf.store(bpf.FRAME, at.keyset, bpf.B1),
        *(part for test in only.keyset for part in _passes(test)),
        *bpf.jump_unless_bit("wanted", bpf.B7, _FILTERED),
        *bpf.look_up(wanted, at.entry), bpf.jump_if_equal("end", bpf.B0, 0),
        bpf.Label("wanted"),
    ]  # fmt: skip


def _passes(test: KeysetTest) -> list[bpf.Part]:
    """On to "end" with a keyset, in B1, that does not pass."""
    masked = [bpf.keep_bits(bpf.B2, test.mask)] if test.mask < 1 << 31 else []
    return [
        bpf.move(bpf.B2, bpf.B1), *masked, bpf.shift_right(bpf.B2, test.shift),
        bpf.jump_unless_equal("end", bpf.B2, test.value),
    ]  # fmt: skip


def return_address(architecture: Architecture) -> list[bpf.Part]:
    """B3: where the return address of the place's function is."""
    saved = _saved(architecture)
    return [
        bpf.load(bpf.B3, bpf.B6, saved[architecture.stack_pointer]),
        *bpf.jump_unless_bit("by stack pointer", bpf.B7, _BY_FRAME_POINTER),
        bpf.load(bpf.B3, bpf.B6, saved[architecture.frame_pointer]),
        bpf.Label("by stack pointer"),
        bpf.move(bpf.B1, bpf.B7), bpf.signed_shift_right(bpf.B1, 32), bpf.plus(bpf.B3, bpf.B1),
    ]  # fmt: skip


def _chosen(architecture: Architecture, what: str, bits: int) -> list[bpf.Part]:
    """B1: the register whose number the cookie has at ``bits``; 0 without one."""
    saved = _saved(architecture)
    parts: list[bpf.Part] = [
        bpf.constant(bpf.B1, 0), bpf.move(bpf.B2, bpf.B7), bpf.keep_bits(bpf.B2, _REGISTER << bits),
        bpf.jump_if_equal(what, bpf.B2, 0),
    ]  # fmt: skip
    for number, name in enumerate(_names(architecture), start=1):
        following = f"not {what} {name}"
        parts += [
            bpf.jump_unless_equal(following, bpf.B2, number << bits), bpf.load(bpf.B1, bpf.B6, saved[name]),
            bpf.jump(what), bpf.Label(following),
        ]  # fmt: skip
    return [*parts, bpf.Label(what)]


@lru_cache
def _names(architecture: Architecture) -> Sequence[str]:
    """The registers in the order of their numbers: those of arguments, which nearly all places use, come first."""
    arguments = architecture.argument_registers[:2]
    return (*arguments[::-1], *(name for name in _saved(architecture) if name not in arguments))


def _number(names: Sequence[str], name: str) -> int:
    return names.index(name) + 1 if name else 0


def _saved(architecture: Architecture) -> dict[str, int]:
    """Where the kernel has the registers; nothing where probes are not supported."""
    return dict(architecture.probing.saved) if architecture.probing is not None else {}
