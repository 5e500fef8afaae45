"""The beginning of all our BPF programs: which operator is dispatched with which keyset, by which thread and line.

One program serves all places: what differs between them is in the place's cookie. The line is found from the thread
state's current frame (through its _PyCFrame up to 3.12), the frame's code object and its current instruction
(pycore_frame.h, cpython/pystate.h).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import InterpreterFrames, LoopAnchor
from gdbext.cpython.abi.python_structures import CFrame, PyThreadState
from gdbext.cpython.abi.versions import unsupported
from gdbext.engine.arch import Architecture
from gdbext.errors import GdbextError
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.site_scan import DispatchSite
from gdbext.torch.stack import DispatchEvent
from gdbext.torch.values.key_names import KeysetTest

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session


class FramePath(NamedTuple):
    """Offsets of the fields from a PyThreadState to a line: its _PyCFrame (None in releases without), in that or in the
    thread state the current frame, in that the code object and the instruction. ``mask``: of the code's address."""

    c_frame: int | None
    current: int
    code: int
    instruction: int
    mask: int


class PythonLines:
    """Reads the thread states and the lines of one process."""

    def __init__(self, session: Session) -> None:
        """Raises PythonUnsupported."""
        self._session = session
        self._runtime = runtime = session.python
        form = runtime.layout.abi.frames if runtime else None
        if not isinstance(form, InterpreterFrames):
            raise unsupported("lines are known for CPython 3.11 and later only")
        space, c_frame, current = runtime.space, None, PyThreadState.current_frame
        if form.anchor is LoopAnchor.C_FRAME:
            c_frame, current = PyThreadState.cframe.offset(space), CFrame.current_frame
        code, instruction = form.code.offset(space), form.instruction.offset(space)
        self.path = FramePath(c_frame, current.offset(space), code, instruction, ~form.tag_bits & (1 << 64) - 1)
        self._lines: dict[tuple[int, int], str | None] = {}

    def thread_states(self) -> dict[int, int]:
        """Thread id → address of its current PyThreadState. Raises GdbextError."""
        # A new session: what was read of a running process is old.
        self._runtime = runtime = self._session.session_after_stop(self._session.target).python
        return {state.native_id: state.address for state in runtime.thread_states() if state.native_id}

    def text(self, code: int, instruction: int) -> str | None:
        """``file:line (function)`` of the addresses of a code object and an instruction; None for a dispatch without a
        Python frame, or if it cannot be read."""
        address = code & self.path.mask
        key = address, instruction
        if key not in self._lines:
            self._lines[key] = None
            if address and self._runtime:
                with contextlib.suppress(GdbextError):
                    code_object = self._runtime.codes.get(address)
                    line = code_object.line(code_object.offset_of(instruction))
                    self._lines[key] = f"{code_object.file}:{line} ({code_object.name})"
        return self._lines[key]


def find_line(path: FramePath, states: int, thread: int, code: int, instruction: int, scratch: int) -> list[bpf.Part]:
    """Store code object and instruction of the thread's innermost Python frame at stack offsets, zeros without one.
    ``states``: the map from thread id, which is at the stack offset ``thread``, to PyThreadState."""
    parts: list[bpf.Part] = [
        bpf.store_constant(bpf.FRAME, code, 0),
        bpf.store_constant(bpf.FRAME, instruction, 0),
        *bpf.look_up(states, thread),
        bpf.jump_if_equal("no frame", bpf.B0, 0),
        bpf.load(bpf.B3, bpf.B0, 0),
    ]
    for offset in (path.c_frame, path.current):
        if offset is not None:
            parts += [
                bpf.increase(bpf.B3, offset),
                *bpf.read_user(scratch),
                bpf.load(bpf.B3, bpf.FRAME, scratch),
                bpf.jump_if_equal("no frame", bpf.B3, 0),
            ]
    return [
        *parts,
        bpf.increase(bpf.B3, path.code),
        *bpf.read_user(code),
        bpf.load(bpf.B3, bpf.FRAME, scratch),
        bpf.increase(bpf.B3, path.instruction),
        *bpf.read_user(instruction),
        bpf.Label("no frame"),
    ]


PLACE_BITS = 16
MAX_PLACES = 1 << PLACE_BITS
_REGISTER, _ENTRY_AT, _KEYSET_AT, _FILTERED, _BY_FRAME_POINTER = 31, 16, 21, 1 << 26, 1 << 27
"""A cookie, from its lowest bit: the place's number, the numbers of two registers (5 bits each, 0: none), two flags;
the distance of the return address from the stack or frame pointer in the upper half."""


class TracePlace(NamedTuple):
    """A site in a file. ``operator``: the OperatorEntry* that it belongs to, 0 if a register of the site holds it.

    ``filtered``: other operators pass it, too, and only wanted ones count.
    """

    path: str
    site: DispatchSite
    operator: int = 0
    filtered: bool = False

    @property
    def event(self) -> DispatchEvent:
        return self.site.event


class StackPlaces(NamedTuple):
    """Offsets on the program's stack of OperatorEntry* (0: the place's own), keyset, thread."""

    entry: int
    keyset: int
    thread: int


class Filter(NamedTuple):
    """Limits the dispatches that the kernel shows to one thread, and to keysets that pass these tests."""

    tid: int | None = None
    keyset: tuple[KeysetTest, ...] = ()


EVERYTHING = Filter()
"""The filter that leaves nothing out."""


def cookie(architecture: Architecture, number: int, place: TracePlace) -> int:
    """The number that the kernel passes to a program for its place."""
    site = place.site
    registers = ("", *_numbered_registers(architecture))
    value = number | registers.index(site.entry) << _ENTRY_AT | registers.index(site.keyset) << _KEYSET_AT
    value |= _FILTERED if place.filtered else 0
    value |= _BY_FRAME_POINTER if site.base == architecture.frame_pointer else 0
    return (site.slot & 0xFFFFFFFF) << 32 | value


def load_dispatch(architecture: Architecture, at: StackPlaces, wanted: int, only: Filter) -> list[bpf.Part]:
    """B6: the registers at the place, B7: the cookie; the rest goes to the stack. Jumps to "end" for other dispatches.

    ``wanted``: the map of the OperatorEntries that filtered places show.
    """
    return [bpf.move(bpf.B6, bpf.B1), *load_thread(at, only), *load_lookup(architecture, at, wanted, only)]


def load_thread(at: StackPlaces, only: Filter = EVERYTHING) -> list[bpf.Part]:
    """Store the thread on the stack; jump to "end" for another one than ``only`` names."""
    others = [bpf.jump_unless_equal("end", bpf.B0, only.tid)] if only.tid else []
    return [bpf.call(bpf.CURRENT_PID_TGID), bpf.low_word(bpf.B0), *others, bpf.store(bpf.FRAME, at.thread, bpf.B0)]


def load_lookup(architecture: Architecture, at: StackPlaces, wanted: int, only: Filter) -> list[bpf.Part]:
    """Load the cookie of the registers in B6 into B7; OperatorEntry* and keyset go to the stack. Otherwise as
    load_dispatch()."""
    parts: list[bpf.Part] = [
        bpf.move(bpf.B1, bpf.B6),
        bpf.call(bpf.ATTACH_COOKIE),
        bpf.move(bpf.B7, bpf.B0),
        *_register_by_number(architecture, "entry", _ENTRY_AT),
        bpf.store(bpf.FRAME, at.entry, bpf.B1),
        *_register_by_number(architecture, "keyset", _KEYSET_AT),
        bpf.store(bpf.FRAME, at.keyset, bpf.B1),
    ]
    for test in only.keyset:
        parts += [
            bpf.move(bpf.B2, bpf.B1),
            *([bpf.keep_bits(bpf.B2, test.mask)] if test.mask < 1 << 31 else []),
            bpf.shift_right(bpf.B2, test.shift),
            bpf.jump_unless_equal("end", bpf.B2, test.value),
        ]
    return [
        *parts,
        *bpf.jump_unless_bit("wanted", bpf.B7, _FILTERED),
        *bpf.look_up(wanted, at.entry),
        bpf.jump_if_equal("end", bpf.B0, 0),
        bpf.Label("wanted"),
    ]


def return_address(architecture: Architecture) -> list[bpf.Part]:
    """B3: the address of the return address of the place's function."""
    saved = saved_registers(architecture)
    return [
        bpf.load(bpf.B3, bpf.B6, saved[architecture.stack_pointer]),
        *bpf.jump_unless_bit("by stack pointer", bpf.B7, _BY_FRAME_POINTER),
        bpf.load(bpf.B3, bpf.B6, saved[architecture.frame_pointer]),
        bpf.Label("by stack pointer"),
        bpf.move(bpf.B1, bpf.B7),
        bpf.signed_shift_right(bpf.B1, 32),
        bpf.plus(bpf.B3, bpf.B1),
    ]


def _register_by_number(architecture: Architecture, what: str, bits: int) -> list[bpf.Part]:
    """B1: the register whose number the cookie has at bit ``bits``; 0 without one. ``what`` makes labels unique."""
    saved = saved_registers(architecture)
    parts: list[bpf.Part] = [
        bpf.constant(bpf.B1, 0),
        bpf.move(bpf.B2, bpf.B7),
        bpf.keep_bits(bpf.B2, _REGISTER << bits),
        bpf.jump_if_equal(what, bpf.B2, 0),
    ]
    for number, name in enumerate(_numbered_registers(architecture), start=1):
        following = f"not {what} {name}"
        parts += [
            bpf.jump_unless_equal(following, bpf.B2, number << bits),
            bpf.load(bpf.B1, bpf.B6, saved[name]),
            bpf.jump(what),
            bpf.Label(following),
        ]
    return [*parts, bpf.Label(what)]


@lru_cache
def _numbered_registers(architecture: Architecture) -> Sequence[str]:
    """The registers in the order of their numbers: argument registers, which nearly all places use, come first."""
    arguments = architecture.argument_registers[:2]
    return (*arguments[::-1], *(name for name in saved_registers(architecture) if name not in arguments))


def saved_registers(architecture: Architecture) -> Mapping[str, int]:
    """Register → its offset in the kernel's pt_regs that a program gets; empty where probes are not supported."""
    return architecture.probing.saved if architecture.probing else {}
