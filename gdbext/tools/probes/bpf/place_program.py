"""The beginning of all our BPF programs: which operator is dispatched with which keyset, by which thread and line.

One program serves all places; the differences between them are in the place's cookie.
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
from gdbext.tools.probes.site_scan import SLOT_BITS, DispatchSite
from gdbext.torch.stack import DispatchEvent
from gdbext.torch.values.key_names import KeysetTest

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session


class FramePath(NamedTuple):
    """Offsets of the fields that lead from a PyThreadState to a line (cpython/pystate.h, pycore_frame.h)."""

    c_frame: int | None
    """Of the _PyCFrame* in the thread state (None from CPython 3.13 on, which has none)."""
    current: int
    """Of the current frame in the _PyCFrame, or in the thread state."""
    code: int
    """Of the code object in the frame."""
    instruction: int
    """Of the current instruction in the frame."""
    mask: int
    """The bits of ``code`` that are its address."""


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
        self._lines: dict[tuple[int, int], str | None] = {}  # (code object, instruction) → file and line

    def thread_states(self) -> dict[int, int]:
        """Thread id → address of its current PyThreadState. Raises GdbextError."""
        # A new session: what was read of a running process is old.
        self._runtime = runtime = self._session.session_after_stop(self._session.target).python
        return {state.native_id: state.address for state in runtime.thread_states() if state.native_id}

    def text(self, code: int, instruction: int) -> str | None:
        """``file:line (function)`` of an instruction. ``code``, ``instruction``: addresses of the code object and of
        the instruction. None for a dispatch without a Python frame, or if it cannot be read."""
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


def find_line(path: FramePath, states: int, thread: int, code: int, instruction: int, scratch: int) -> str:
    """BPF code that stores code object and instruction of the thread's innermost Python frame, zeros without one.
    ``states``: the map from thread id to PyThreadState; the others are stack offsets: of the thread id, of the two
    results, and of room for a word."""
    steps = "".join(
        f"""
        r3 += {offset}
        call probe_read_user(fp + {scratch}, 8, r3)
        r3 = [fp + {scratch}]
        if r3 == 0 goto no_frame"""
        for offset in (path.c_frame, path.current)
        if offset is not None
    )
    return f"""
        [fp + {code}] = 0
        [fp + {instruction}] = 0
        {bpf.look_up(states, thread)}
        if r0 == 0 goto no_frame
        r3 = [r0 + 0]
        {steps}
        r3 += {path.code}
        call probe_read_user(fp + {code}, 8, r3)
        r3 = [fp + {scratch}] + {path.instruction}
        call probe_read_user(fp + {instruction}, 8, r3)
    no_frame:"""


PLACE_BITS = 16
MAX_PLACES = 1 << PLACE_BITS
_REGISTER, _ENTRY_AT, _KEYSET_AT, _FILTERED, _BY_FRAME_POINTER = 31, 16, 21, 1 << 26, 1 << 27
"""The parts of a cookie: bits 0 to 15 are the place's number; _ENTRY_AT and _KEYSET_AT are the first bits of two
numbers of registers (5 bits each, 0: none); then two flags. The upper half is DispatchSite.slot_and_constant: the
distance of the return address from the stack or frame pointer, and the bits of a constant keyset."""


class TracePlace(NamedTuple):
    """A site in a file, at which a probe is placed."""

    path: str
    site: DispatchSite
    operator: int = 0
    """The OperatorEntry* that it belongs to, 0 if a register of the site holds it."""
    filtered: bool = False
    """Only operators in the map ``wanted`` count; others pass it, too."""

    @property
    def event(self) -> DispatchEvent:
        return self.site.event


class StackPlaces(NamedTuple):
    """Offsets on the BPF program's stack at which it stores what it finds."""

    entry: int
    """The OperatorEntry*, 0 for the place's own."""
    keyset: int
    thread: int


class Filter(NamedTuple):
    """The dispatches that the BPF program records: only those of one thread (None: all), whose keysets pass all
    tests."""

    tid: int | None = None
    keyset: tuple[KeysetTest, ...] = ()


EVERYTHING = Filter()
"""The filter that leaves nothing out."""


def cookie(architecture: Architecture, number: int, place: TracePlace) -> int:
    """The number that the kernel passes to the BPF program at a place. ``number``: the place's."""
    site = place.site
    registers = ("", *_numbered_registers(architecture))
    value = number | registers.index(site.entry) << _ENTRY_AT | registers.index(site.keyset) << _KEYSET_AT
    value |= _FILTERED if place.filtered else 0
    value |= _BY_FRAME_POINTER if site.base == architecture.frame_pointer else 0
    return site.slot_and_constant << 32 | value


def load_dispatch(architecture: Architecture, at: StackPlaces, wanted: int, only: Filter) -> str:
    """BPF code for the beginning of a program: r6 gets the registers at the place, r7 the cookie, the stack the rest;
    goes to "end" for a dispatch that is not wanted. ``wanted``: the map of the OperatorEntries that filtered places
    show."""
    return f"""
        r6 = r1
        {load_thread(at, only)}
        {load_lookup(architecture, at, wanted, only)}"""


def load_thread(at: StackPlaces, only: Filter = EVERYTHING) -> str:
    """BPF code that stores the thread id; goes to "end" for another thread than ``only`` names."""
    return f"""
        call get_current_pid_tgid()
        w0 = w0
        {f"if r0 != {only.tid} goto end" if only.tid else ""}
        [fp + {at.thread}] = r0"""


def load_lookup(architecture: Architecture, at: StackPlaces, wanted: int, only: Filter) -> str:
    """BPF code that loads the cookie into r7, and stores OperatorEntry* and keyset, by the registers at r6; goes to
    "end" for a dispatch that is not wanted. ``wanted``: as in load_dispatch()."""
    tests = "".join(
        f"""
        r2 = r1
        {f"r2 &= {test.mask}" if test.mask < 1 << 31 else ""}
        r2 >>= {test.shift}
        if r2 != {test.value} goto end"""
        for test in only.keyset
    )
    return f"""
        call get_attach_cookie(r6)
        r7 = r0
        {_register_by_number(architecture, "entry", _ENTRY_AT)}
        [fp + {at.entry}] = r1
        {_register_by_number(architecture, "keyset", _KEYSET_AT)}
        if r1 != 0 goto has_keyset
        r2 = r7 >> {32 + SLOT_BITS}
        if r2 == 0 goto has_keyset
        r2 &= 63
        r1 = 1
        r1 <<= r2
        r2 = r7 >> {32 + SLOT_BITS + 6}
        r3 = 1
        r3 <<= r2
        r1 |= r3
    has_keyset:
        [fp + {at.keyset}] = r1
        {tests}
        unless r7 & {_FILTERED} goto wanted
        {bpf.look_up(wanted, at.entry)}
        if r0 == 0 goto end
    wanted:"""


def return_address(architecture: Architecture) -> str:
    """BPF code that sets r3 to the address of the return address of the place's function: the stack or frame pointer
    plus the distance in the upper half of the cookie."""
    saved = saved_registers(architecture)
    return f"""
        r3 = [r6 + {saved[architecture.stack_pointer]}]
        unless r7 & {_BY_FRAME_POINTER} goto by_stack_pointer
        r3 = [r6 + {saved[architecture.frame_pointer]}]
    by_stack_pointer:
        r1 = r7 << {32 - SLOT_BITS}
        r1 s>>= {64 - SLOT_BITS}
        r3 += r1"""


def _register_by_number(architecture: Architecture, name: str, bits: int) -> str:
    """BPF code that sets r1 to the register whose number the cookie has from bit ``bits`` on; 0 without one. ``name``
    makes the labels unique."""
    saved = saved_registers(architecture)
    cases = "".join(
        f"""
        if r2 != {number << bits} goto not_{name}_{number}
        r1 = [r6 + {saved[register]}]
        goto {name}
    not_{name}_{number}:"""
        for number, register in enumerate(_numbered_registers(architecture), start=1)
    )
    return f"""
        r1 = 0
        r2 = r7 & {_REGISTER << bits}
        if r2 == 0 goto {name}
        {cases}
    {name}:"""


@lru_cache
def _numbered_registers(architecture: Architecture) -> Sequence[str]:
    """The registers in the order of their numbers: argument registers, which nearly all places use, come first."""
    arguments = architecture.argument_registers[:2]
    return (*arguments[::-1], *(name for name in saved_registers(architecture) if name not in arguments))


def saved_registers(architecture: Architecture) -> Mapping[str, int]:
    """Register → its offset in the kernel's pt_regs that a program gets; empty where probes are not supported."""
    return architecture.probing.saved if architecture.probing else {}
