"""Frames of the versions that have a PyFrameObject (frameobject.h) and an evaluation loop for each call."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.cpython.abi.python_abi import FrameObjects
from gdbext.cpython.abi.python_layout import PythonLayout
from gdbext.cpython.objects.code import Code, CodeCache
from gdbext.cpython.objects.linetable import CODE_UNIT
from gdbext.cpython.threads.python_frame import FrameGroup, PythonFrame, c_frames, linked_frames
from gdbext.cpython.threads.thread_state import ThreadState
from gdbext.process.memory import Memory


class FrameObjectReader:
    """Groups the frame objects of a thread by evaluation loop."""

    def __init__(self, memory: Memory, layout: PythonLayout, codes: CodeCache, form: FrameObjects) -> None:
        self._memory = memory
        self._layout = layout
        self._codes = codes
        self._form = form

    def groups(self, state: ThreadState) -> Iterator[FrameGroup]:
        """One group for each evaluation loop; a generator that only passes throw() on has none of its own.

        Raises MemoryFault, BadData.
        """
        anchors = self._anchors(state)
        passing: list[PythonFrame] = []
        last: FrameGroup | None = None
        for frame, suspended in self._frames(state):
            if suspended:
                passing.append(frame)
                continue
            if last is not None:
                yield last
            last = FrameGroup([*passing, frame], next(anchors, None))
            passing = []
        if last is not None:
            if passing:  # 3.9 does not link such a generator to its caller: f_back is NULL
                last.extend(passing)
                last.cut = True
            yield last

    def _frames(self, state: ThreadState) -> Iterator[tuple[PythonFrame, bool]]:
        """Each frame, and whether it is a suspended generator."""
        offset, memory = self._layout.offset, self._memory
        code_at, back_at = offset("PyFrameObject", "f_code"), offset("PyFrameObject", "f_back")
        lasti_at, gen_at = offset("PyFrameObject", "f_lasti"), offset("PyFrameObject", "f_gen")
        top = memory.u64(state.address + offset("PyThreadState", "frame"))
        for address in linked_frames(memory, top, back_at):
            code = self._codes.get(memory.u64(address + code_at))
            at = memory.i32(address + lasti_at) * self._form.lasti_unit
            suspended = bool(memory.u64(address + gen_at)) and self._is_passing_on(code, at)
            yield PythonFrame(code.name, code.file, code.line(at), address, code.address), suspended

    def _is_passing_on(self, code: Code, at: int) -> bool:
        """A generator that is suspended in ``yield from`` while on the stack: genobject.c's _gen_throw put it
        there without an evaluation loop. When it runs, the current instruction is YIELD_FROM itself."""
        opcode = self._form.yield_from
        return at >= 0 and code.opcode(at) != opcode and code.opcode(at + CODE_UNIT) == opcode

    def _anchors(self, state: ThreadState) -> Iterator[int]:
        """The C frames of the evaluation loops, innermost first; nothing where the version has none."""
        layout = self._layout
        if layout.find("PyThreadState", "cframe") is None:
            return iter(())
        cframe = self._memory.u64(state.address + layout.offset("PyThreadState", "cframe"))
        root = state.address + layout.offset("PyThreadState", "root_cframe")
        return c_frames(self._memory, cframe, root, layout.nested("PyThreadState", "root_cframe", "previous"))
