"""Which line of Python a thread is in, as a BPF program finds it: the innermost frame of the thread's state.

Read are the thread state's current frame (through its _PyCFrame up to 3.12), the frame's code object and its current
instruction (pycore_frame.h, cpython/pystate.h); what they mean is said here, afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi.python_abi import InterpreterFrames, LoopAnchor
from gdbext.errors import GdbextError, PythonUnsupported
from gdbext.model.record import Record
from gdbext.probes.bpf import bpf_program as bpf

if TYPE_CHECKING:
    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.inspection.session import Session

_THREAD = "PyThreadState"
_FRAME = "_PyInterpreterFrame"


class FramePath(Record):
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
        """Raises PythonUnsupported."""
        self._session = session
        self._runtime = runtime = session.python
        form = runtime.layout.abi.frames if runtime is not None else None
        if runtime is None or not isinstance(form, InterpreterFrames):
            raise PythonUnsupported("lines are known for CPython 3.11 and later only")
        self.path = _path(runtime, form)
        self._lines: dict[tuple[int, int], str | None] = {}

    def thread_states(self) -> dict[int, int]:
        """Thread id → address of its PyThreadState, as they are now. Raises GdbextError."""
        # Opened anew: what was read of a process that runs on is old.
        self._runtime = runtime = self._session.reopened(self._session.target).python
        states = runtime.thread_states() if runtime is not None else ()
        return {state.native_id: state.address for state in states if state.native_id}

    def text(self, code: int, instruction: int) -> str | None:
        """``file:line (function)``; None for a dispatch that no Python frame made, or where it cannot be read."""
        key = code & self.path.mask, instruction
        if key not in self._lines:
            self._lines[key] = self._read(*key) if key[0] else None
        return self._lines[key]

    def _read(self, address: int, instruction: int) -> str | None:
        if self._runtime is None:
            return None
        try:
            code = self._runtime.codes.get(address)
            return f"{code.file}:{code.line(code.offset_of(instruction))} ({code.name})"
        except GdbextError:
            return None


def _path(runtime: PythonRuntime, form: InterpreterFrames) -> FramePath:
    layout = runtime.layout
    by_c_frame = form.anchor is LoopAnchor.C_FRAME
    if by_c_frame:
        c_frame: int | None = layout.offset(_THREAD, "cframe")
        current = layout.nested(_THREAD, "root_cframe", "current_frame")
    else:
        c_frame, current = None, layout.offset(_THREAD, "current_frame")
    code, instruction = layout.offset(_FRAME, form.code), layout.offset(_FRAME, form.instruction)
    return FramePath(c_frame, current, code, instruction, ~form.tag_bits & (1 << 64) - 1)


def find_line(path: FramePath, states: int, thread: int, code: int, instruction: int, scratch: int) -> list[bpf.Part]:
    """Code object and instruction of the thread onto the program's stack, zeros without one.

    ``states``: the map from thread id, which is on the stack at ``thread``, to PyThreadState.
    """
    parts: list[bpf.Part] = [
        bpf.store_constant(bpf.FRAME, code, 0), bpf.store_constant(bpf.FRAME, instruction, 0),
        *bpf.look_up(states, thread), bpf.jump_if_equal("no frame", bpf.B0, 0), bpf.load(bpf.B3, bpf.B0, 0),
    ]  # fmt: skip
    for offset in (path.c_frame, path.current):
        if offset is not None:
            parts += [
                bpf.increase(bpf.B3, offset), *bpf.read_user(scratch), bpf.load(bpf.B3, bpf.FRAME, scratch),
                bpf.jump_if_equal("no frame", bpf.B3, 0),
            ]  # fmt: skip
    return [
        *parts, bpf.increase(bpf.B3, path.code), *bpf.read_user(code),
        bpf.load(bpf.B3, bpf.FRAME, scratch), bpf.increase(bpf.B3, path.instruction), *bpf.read_user(instruction),
        bpf.Label("no frame"),
    ]  # fmt: skip
