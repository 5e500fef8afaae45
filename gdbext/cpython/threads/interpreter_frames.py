"""Frames of the versions that have a _PyInterpreterFrame (pycore_frame.h): calls from Python to Python stay in the
same native evaluation loop, so a loop runs a group of frames.

What lies on the native stack divides the groups exactly: the _PyCFrame of each loop (cpython/pystate.h of 3.11) or
its entry frame, which has an owner of its own (enum _frameowner).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from gdbext.cpython.abi.python_abi import InterpreterFrames, LoopAnchor
from gdbext.cpython.abi.python_layout import PythonLayout
from gdbext.cpython.objects.code import CodeCache
from gdbext.cpython.objects.linetable import CODE_UNIT
from gdbext.cpython.threads.python_frame import FrameGroup, IncompleteGroup, PythonFrame, c_frames, linked_frames
from gdbext.cpython.threads.thread_state import ThreadState
from gdbext.errors import BadData, MemoryFault
from gdbext.process.memory import Memory

_word = struct.Struct("<Q").unpack_from


class InterpreterFrameReader:
    """Groups the interpreter frames of a thread by evaluation loop."""

    def __init__(self, memory: Memory, layout: PythonLayout, codes: CodeCache, form: InterpreterFrames) -> None:
        offset = layout.offset
        self._memory = memory
        self._layout = layout
        self._codes = codes
        self._form = form
        self._address_mask = ~form.tag_bits
        self._frame_size = offset("_PyInterpreterFrame", "localsplus")
        self._c_frame = self._c_frame_offsets() if form.anchor is LoopAnchor.C_FRAME else None
        self._code_at = offset("_PyInterpreterFrame", form.code)
        self._previous_at = offset("_PyInterpreterFrame", "previous")
        self._instruction_at = offset("_PyInterpreterFrame", form.instruction)
        self._owner_at = offset("_PyInterpreterFrame", "owner")

    def groups(self, state: ThreadState) -> Iterator[FrameGroup]:
        """One group for each evaluation loop. Raises MemoryFault, BadData, IncompleteGroup."""
        if self._c_frame is not None:
            return self._groups_by_c_frame(state, *self._c_frame)
        base_at = self._layout.find("PyThreadState", "base_frame")
        base = self._memory.u64(state.address + base_at) if base_at is not None else 0
        top = self._memory.u64(state.address + self._layout.offset("PyThreadState", "current_frame"))
        return self._groups_by_entry_frame(top, base)

    def _c_frame_offsets(self) -> tuple[int, int, int, int]:
        """In a thread state: the innermost _PyCFrame and the outermost one; in that: the frame and the next one."""
        layout = self._layout
        return (
            layout.offset("PyThreadState", "cframe"),
            layout.offset("PyThreadState", "root_cframe"),
            layout.nested("PyThreadState", "root_cframe", "current_frame"),
            layout.nested("PyThreadState", "root_cframe", "previous"),
        )

    def _groups_by_c_frame(
        self, state: ThreadState, top_at: int, root_at: int, current_at: int, previous_at: int
    ) -> Iterator[FrameGroup]:
        """Each _PyCFrame knows the innermost frame of its loop; the next one's is where it ends."""
        memory = self._memory
        anchors = list(c_frames(memory, memory.u64(state.address + top_at), state.address + root_at, previous_at))
        tops = [memory.u64(anchor + current_at) for anchor in anchors]
        for index, anchor in enumerate(anchors):
            end = tops[index + 1] if index + 1 < len(tops) else 0
            yield self._group(self._until(tops[index], end), anchor)

    def _until(self, address: int, end: int) -> Iterator[int]:
        for frame in linked_frames(self._memory, address, self._previous_at):
            if frame == end:
                return
            yield frame

    def _groups_by_entry_frame(self, top: int, base: int) -> Iterator[FrameGroup]:
        """Each loop's own entry frame ends its group; ``base`` is an entry frame of no loop, below all others."""
        pending: list[int] = []
        try:
            for address in self._until(top, base):
                if self._memory.u8(address + self._owner_at) == self._form.entry_owner:
                    yield self._group(pending, address)
                    pending = []
                else:
                    pending.append(address)
        except (BadData, MemoryFault) as error:
            raise IncompleteGroup(self._group(pending, None), str(error)) from error
        if pending:
            yield self._group(pending, None)

    def _group(self, addresses: Iterable[int], anchor: int | None) -> FrameGroup:
        """Read the frames of one loop, without the ones that Python does not show either."""
        frames: list[PythonFrame] = []
        try:
            for address in addresses:
                frame = self._frame(address)
                if frame is not None:
                    frames.append(frame)
        except (BadData, MemoryFault) as error:
            raise IncompleteGroup(FrameGroup(frames, anchor), str(error)) from error
        return FrameGroup(frames, anchor)

    def _frame(self, address: int) -> PythonFrame | None:
        """One _PyInterpreterFrame; None for entry frames, shims and frames that are being set up."""
        raw = self._memory.read(address, self._frame_size)
        owner = raw[self._owner_at]
        if owner in self._form.codeless_owners:
            return None
        code = self._codes.get(_word(raw, self._code_at)[0] & self._address_mask)
        at = code.offset_of(_word(raw, self._instruction_at)[0])
        if owner != self._form.generator_owner and at < code.first_traceable * CODE_UNIT:
            return None  # _PyFrame_IsIncomplete
        return PythonFrame(code.name, code.file, code.line(at), address, code.address)
