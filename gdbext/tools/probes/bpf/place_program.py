"""The beginning of all our BPF programs: which operator is dispatched with which keyset, and is it wanted?

One program serves all places. What differs between them is in the place's cookie: the registers, and how far the
return address is from the stack or frame pointer.

Which line of Python a thread is in, as a BPF program finds it: the innermost frame of the thread's state.

Read are the thread state's current frame (through its _PyCFrame up to 3.12), the frame's code object and its current
instruction (pycore_frame.h, cpython/pystate.h); what they mean is said here, afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    from gdbext.engine.layouts.declarations import Space


class FramePath(NamedTuple):
    """Offsets on the way from a PyThreadState: its _PyCFrame (None where there is none), from there or from the thread
    state the current frame, in that the code object and the instruction. ``mask``: of the code object's address."""

    c_frame: int | None
    current: int
    code: int
    instruction: int
    mask: int


class PythonLines:
    """Threads and lines of one process."""

    def __init__(self, session: Session) -> None:
        """Prepare the program. Raises PythonUnsupported."""
        self._session = session
        self._runtime = runtime = session.python
        form = runtime.layout.abi.frames if runtime else None
        if not isinstance(form, InterpreterFrames):
            raise unsupported("lines are known for CPython 3.11 and later only")
        self.path = _path(runtime.space, form)
        self._lines: dict[tuple[int, int], str | None] = {}

    def thread_states(self) -> dict[int, int]:
        """Thread id → address of its PyThreadState, as they are now. Raises GdbextError."""
        # Opened anew: what was read of a process that runs on is old.
        self._runtime = runtime = self._session.reopened(self._session.target).python
        return {state.native_id: state.address for state in runtime.thread_states() if state.native_id}

    def text(self, code: int, instruction: int) -> str | None:
        """``file:line (function)``; None for a dispatch that no Python frame made, or where it cannot be read."""
        key = code & self.path.mask, instruction
        if key not in self._lines:
            self._lines[key] = self._read(*key) if key[0] else None
        return self._lines[key]

    def _read(self, address: int, instruction: int) -> str | None:
        if not self._runtime:
            return None
        try:
            code = self._runtime.codes.get(address)
            return f"{code.file}:{code.line(code.offset_of(instruction))} ({code.name})"
        except GdbextError:
            return None


def _path(space: Space, form: InterpreterFrames) -> FramePath:
    by_c_frame = form.anchor is LoopAnchor.C_FRAME
    if by_c_frame:
        c_frame: int | None = PyThreadState.cframe.offset(space)
        current = CFrame.current_frame.offset(space)
    else:
        c_frame, current = None, PyThreadState.current_frame.offset(space)
    code, instruction = form.code.offset(space), form.instruction.offset(space)
    return FramePath(c_frame, current, code, instruction, ~form.tag_bits & (1 << 64) - 1)


def find_line(path: FramePath, states: int, thread: int, code: int, instruction: int, scratch: int) -> list[bpf.Part]:
    """Code object and instruction of the thread onto the program's stack, zeros without one.

    ``states``: the map from thread id, which is on the stack at ``thread``, to PyThreadState.
    """
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
_REGISTER = 31
_ENTRY_AT, _KEYSET_AT = 16, 21
"""Bits of the cookie: the place's number, the numbers of two registers (0: none), then"""
_FILTERED, _BY_FRAME_POINTER = 1 << 26, 1 << 27
"""and the distance of the return address in the upper half."""


class TracePlace(NamedTuple):
    """A site in a file. ``operator``: the OperatorEntry* that it belongs to, 0 where the site's register has it.

    ``filtered``: other operators pass it, too, and only those that are wanted count.
    """

    path: str
    site: DispatchSite
    operator: int = 0
    filtered: bool = False

    @property
    def event(self) -> DispatchEvent:
        """The event by which the dispatcher is entered there."""
        return self.site.event


class At(NamedTuple):
    """Places on the program's stack: OperatorEntry* (0: the place's own), keyset, thread."""

    entry: int
    keyset: int
    thread: int


class Filter(NamedTuple):
    """The filter of dispatches that the kernel shows, beside those of the operators that are wanted: of one thread, of
    keysets that pass these tests."""

    tid: int | None = None
    keyset: tuple[KeysetTest, ...] = ()


EVERYTHING = Filter()
"""The filter that leaves nothing out."""


def cookie(architecture: Architecture, number: int, place: TracePlace) -> int:
    """The number that tells a program of its place."""
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
    others = [bpf.jump_unless_equal("end", bpf.B0, only.tid)] if only.tid else []
    return [bpf.call(bpf.CURRENT_PID_TGID), bpf.low_word(bpf.B0), *others, bpf.store(bpf.FRAME, at.thread, bpf.B0)]


def looked_up(architecture: Architecture, at: At, wanted: int, only: Filter = EVERYTHING) -> list[bpf.Part]:
    """Take the cookie from B6 into B7; OperatorEntry* and keyset onto the stack. Otherwise as dispatch()."""
    return [
        bpf.move(bpf.B1, bpf.B6),
        bpf.call(bpf.ATTACH_COOKIE),
        bpf.move(bpf.B7, bpf.B0),
        *_chosen(architecture, "entry", _ENTRY_AT),
        bpf.store(bpf.FRAME, at.entry, bpf.B1),
        *_chosen(architecture, "keyset", _KEYSET_AT),
        bpf.store(bpf.FRAME, at.keyset, bpf.B1),
        *(part for test in only.keyset for part in _passes(test)),
        *bpf.jump_unless_bit("wanted", bpf.B7, _FILTERED),
        *bpf.look_up(wanted, at.entry),
        bpf.jump_if_equal("end", bpf.B0, 0),
        bpf.Label("wanted"),
    ]


def _passes(test: KeysetTest) -> list[bpf.Part]:
    """Go on to "end" with a keyset, in B1, that does not pass."""
    masked = [bpf.keep_bits(bpf.B2, test.mask)] if test.mask < 1 << 31 else []
    return [
        bpf.move(bpf.B2, bpf.B1),
        *masked,
        bpf.shift_right(bpf.B2, test.shift),
        bpf.jump_unless_equal("end", bpf.B2, test.value),
    ]


def return_address(architecture: Architecture) -> list[bpf.Part]:
    """B3: where the return address of the place's function is."""
    saved = _saved(architecture)
    return [
        bpf.load(bpf.B3, bpf.B6, saved[architecture.stack_pointer]),
        *bpf.jump_unless_bit("by stack pointer", bpf.B7, _BY_FRAME_POINTER),
        bpf.load(bpf.B3, bpf.B6, saved[architecture.frame_pointer]),
        bpf.Label("by stack pointer"),
        bpf.move(bpf.B1, bpf.B7),
        bpf.signed_shift_right(bpf.B1, 32),
        bpf.plus(bpf.B3, bpf.B1),
    ]


def _chosen(architecture: Architecture, what: str, bits: int) -> list[bpf.Part]:
    """B1: the register whose number the cookie has at ``bits``; 0 without one."""
    saved = _saved(architecture)
    parts: list[bpf.Part] = [
        bpf.constant(bpf.B1, 0),
        bpf.move(bpf.B2, bpf.B7),
        bpf.keep_bits(bpf.B2, _REGISTER << bits),
        bpf.jump_if_equal(what, bpf.B2, 0),
    ]
    for number, name in enumerate(_names(architecture), start=1):
        following = f"not {what} {name}"
        parts += [
            bpf.jump_unless_equal(following, bpf.B2, number << bits),
            bpf.load(bpf.B1, bpf.B6, saved[name]),
            bpf.jump(what),
            bpf.Label(following),
        ]
    return [*parts, bpf.Label(what)]


@lru_cache
def _names(architecture: Architecture) -> Sequence[str]:
    """The registers in the order of their numbers: those of arguments, which nearly all places use, come first."""
    arguments = architecture.argument_registers[:2]
    return (*arguments[::-1], *(name for name in _saved(architecture) if name not in arguments))


def _number(names: Sequence[str], name: str) -> int:
    return names.index(name) + 1 if name else 0


def _saved(architecture: Architecture) -> dict[str, int]:
    """Offsets at which the kernel has the registers; nothing where probes are not supported."""
    return dict(architecture.probing.saved) if architecture.probing else {}
