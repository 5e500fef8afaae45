"""Python frames of a thread, and which native frame of the evaluation loop runs which of them.

3.8-3.10: PyFrameObject (frameobject.h), one for each native ``_PyEval_EvalFrameDefault``.
3.11 and later: _PyInterpreterFrame (pycore_frame.h); calls from Python to Python stay in the same native frame.
What lies on the native stack tells the groups apart exactly: the _PyCFrame of each evaluation loop (3.10-3.12,
cpython/pystate.h) or its entry frame, owned by the C stack (3.13).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdbext.cpython.objects.code import Code
from gdbext.cpython.threads.runtime import PythonRuntime, ThreadState
from gdbext.errors import BadData, MemoryFault

FRAME_LIMIT = 1_000_000
"""Most Python frames of one thread that are walked."""
_CODE_UNIT = 2  # bytes: sizeof(_Py_CODEUNIT)
_OWNED_BY_GENERATOR = 1  # enum _frameowner, pycore_frame.h (3.11-3.13)
_OWNED_BY_C_STACK = 3  # FRAME_OWNED_BY_CSTACK, 3.12 and later
# Opcodes of 3.8-3.10 (Include/opcode.h): a suspended "yield from" stands before YIELD_FROM, at the LOAD_CONST.
_YIELD_FROM = 72


@dataclass(frozen=True)
class PythonFrame:
    """One Python frame.

    ``function`` is the qualified name (3.11 and later) or the plain name, ``line`` the current line (None where
    the compiler gave none), ``address`` that of the PyFrameObject (3.8-3.10) or _PyInterpreterFrame, ``code``
    that of its code object. ``is_entry``: it was called from C, so it is the outermost of its native frame.
    """

    function: str
    file: str
    line: int | None
    address: int
    is_entry: bool
    code: int = 0


class FrameGroup(list[PythonFrame]):
    """The Python frames that one native evaluation loop runs, innermost first.

    ``anchor`` is an address inside that loop's native stack frame, None where the version keeps nothing there.
    ``cut``: its callers could not be found, so groups that should follow are missing.
    """

    def __init__(self, frames: Sequence[PythonFrame], anchor: int | None, cut: bool = False) -> None:
        super().__init__(frames)
        self.anchor = anchor
        self.cut = cut


@dataclass(frozen=True)
class PythonStack:
    """All groups of a thread, innermost first; ``problem`` says why the walk ended early, None if it did not."""

    groups: tuple[FrameGroup, ...]
    problem: str | None

    @property
    def frames(self) -> list[PythonFrame]:
        """All frames, innermost first."""
        return [frame for group in self.groups for frame in group]


class FrameReader:
    """Reads the Python frames of one runtime's threads."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self._runtime = runtime
        self._memory = runtime.memory
        self._codes = runtime.codes
        self._stacks: dict[int, PythonStack] = {}
        layout = runtime.layout
        self._layout = layout
        self._minor = runtime.minor
        if self._minor >= (3, 11):
            offset = layout.offset
            executable = "f_code" if self._minor < (3, 13) else "f_executable"
            instruction = "prev_instr" if self._minor < (3, 13) else "instr_ptr"
            self._frame_size = offset("_PyInterpreterFrame", "localsplus")
            self._code_at = offset("_PyInterpreterFrame", executable)
            self._previous_at = offset("_PyInterpreterFrame", "previous")
            self._instruction_at = offset("_PyInterpreterFrame", instruction)
            self._owner_at = offset("_PyInterpreterFrame", "owner")

    def stack(self, state: ThreadState) -> PythonStack:
        """All Python frames of a thread, kept. What could not be read ends the walk with a problem."""
        known = self._stacks.get(state.address)
        if known is None:
            known = self._stacks[state.address] = self._read_stack(state)
        return known

    def forget(self) -> None:
        """Drop what was kept: the target has run on."""
        self._stacks.clear()

    def _read_stack(self, state: ThreadState) -> PythonStack:
        groups: list[FrameGroup] = []
        problem = None
        try:
            walk = self._old_groups(state) if self._minor < (3, 11) else self._new_groups(state)
            count = 0
            for group in walk:
                groups.append(group)
                count += len(group)
                if count >= FRAME_LIMIT:
                    problem = f"truncated at {count} frames"
                    break
        except _Incomplete as error:
            groups.append(error.group)
            problem = error.problem
        except (BadData, MemoryFault) as error:
            problem = str(error)
        if groups and problem is not None:
            groups[-1].cut = True
        elif groups and groups[-1].cut:
            problem = "the callers of a generator are not linked while throw() passes through it (CPython 3.9)"
        return PythonStack(tuple(groups), problem)

    # 3.8-3.10

    def _old_groups(self, state: ThreadState) -> Iterator[FrameGroup]:
        """One group for each evaluation loop; a generator that only passes throw() on has none of its own."""
        anchors = self._anchors(state)
        passing: list[PythonFrame] = []
        last: FrameGroup | None = None
        for frame, suspended in self._old_frames(state):
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

    def _old_frames(self, state: ThreadState) -> Iterator[tuple[PythonFrame, bool]]:
        offset, memory = self._layout.offset, self._memory
        code_at, back_at = offset("PyFrameObject", "f_code"), offset("PyFrameObject", "f_back")
        lasti_at, gen_at = offset("PyFrameObject", "f_lasti"), offset("PyFrameObject", "f_gen")
        unit = _CODE_UNIT if self._minor >= (3, 10) else 1
        top = memory.u64(state.address + offset("PyThreadState", "frame"))
        for address in self._chain(top, back_at):
            code = self._codes.get(memory.u64(address + code_at))
            at = memory.i32(address + lasti_at) * unit
            suspended = bool(memory.u64(address + gen_at)) and self._is_passing_on(code, at)
            yield PythonFrame(code.name, code.file, code.line(at), address, not suspended, code.address), suspended

    def _chain(self, address: int, back_at: int) -> Iterator[int]:
        """Follow a linked list of frames."""
        seen: set[int] = set()
        while address:
            if address in seen:
                raise BadData(f"the frame at {address:#x} is its own caller")
            if len(seen) >= FRAME_LIMIT:
                raise BadData(f"truncated at {FRAME_LIMIT} frames")
            seen.add(address)
            yield address
            address = self._memory.u64(address + back_at)

    @staticmethod
    def _is_passing_on(code: Code, at: int) -> bool:
        """A generator that is suspended in ``yield from`` while on the stack: genobject.c's _gen_throw put it
        there without an evaluation loop. When it runs, the current instruction is YIELD_FROM itself."""
        return at >= 0 and code.opcode(at) != _YIELD_FROM and code.opcode(at + _CODE_UNIT) == _YIELD_FROM

    def _anchors(self, state: ThreadState) -> Iterator[int]:
        """Addresses of the evaluation loops' CFrames, innermost first; nothing before 3.10."""
        if self._layout.find("PyThreadState", "cframe") is not None:
            previous = self._layout.nested("PyThreadState", "root_cframe", "previous")
            cframe = self._memory.u64(state.address + self._layout.offset("PyThreadState", "cframe"))
            root = state.address + self._layout.offset("PyThreadState", "root_cframe")
            for address in self._chain(cframe, previous):
                if address == root:
                    return
                yield address

    # 3.11 and later

    def _new_groups(self, state: ThreadState) -> Iterator[FrameGroup]:
        if self._minor >= (3, 13):
            top = self._memory.u64(state.address + self._layout.offset("PyThreadState", "current_frame"))
            return self._groups_by_entry(top)
        return self._groups_by_cframe(state)

    def _groups_by_cframe(self, state: ThreadState) -> Iterator[FrameGroup]:
        """3.11, 3.12: each _PyCFrame knows the innermost frame of its loop; the next one's is where it ends."""
        current_at = self._layout.nested("PyThreadState", "root_cframe", "current_frame")
        anchors = list(self._anchors(state))
        tops = [self._memory.u64(anchor + current_at) for anchor in anchors]
        for index, anchor in enumerate(anchors):
            end = tops[index + 1] if index + 1 < len(tops) else 0
            yield self._group(self._until(tops[index], end), anchor)

    def _until(self, address: int, end: int) -> Iterator[int]:
        for frame in self._chain(address, self._previous_at):
            if frame == end:
                return
            yield frame

    def _groups_by_entry(self, top: int) -> Iterator[FrameGroup]:
        """3.13: each loop's own entry frame, owned by the C stack, ends its group."""
        pending: list[int] = []
        try:
            for address in self._chain(top, self._previous_at):
                if self._memory.u8(address + self._owner_at) == _OWNED_BY_C_STACK:
                    yield self._group(pending, address)
                    pending = []
                else:
                    pending.append(address)
        except (BadData, MemoryFault) as error:
            raise _Incomplete(self._group(pending, None), str(error)) from error
        if pending:
            yield self._group(pending, None)

    def _group(self, addresses: Sequence[int] | Iterator[int], anchor: int | None) -> FrameGroup:
        """Read the frames of one loop, without the ones that Python does not show either."""
        frames: list[PythonFrame] = []
        try:
            for address in addresses:
                frame = self._new_frame(address)
                if frame is not None:
                    frames.append(frame)
        except (BadData, MemoryFault) as error:
            raise _Incomplete(FrameGroup(frames, anchor), str(error)) from error
        if frames:
            last = frames[-1]
            frames[-1] = PythonFrame(last.function, last.file, last.line, last.address, True, last.code)
        return FrameGroup(frames, anchor)

    def _new_frame(self, address: int) -> PythonFrame | None:
        """One _PyInterpreterFrame; None for entry frames, shims and frames that are being set up."""
        raw = self._memory.read(address, self._frame_size)
        owner = raw[self._owner_at]
        if owner == _OWNED_BY_C_STACK:
            return None
        code = self._codes.get(_word(raw, self._code_at))
        at = _word(raw, self._instruction_at) - code.bytecode
        if owner != _OWNED_BY_GENERATOR and at < code.first_traceable * _CODE_UNIT:
            return None  # _PyFrame_IsIncomplete
        return PythonFrame(code.name, code.file, code.line(at), address, False, code.address)


class _Incomplete(Exception):
    """Carries what was read of a group before a fault."""

    def __init__(self, group: FrameGroup, problem: str) -> None:
        super().__init__(problem)
        self.group = group
        self.problem = problem


def _word(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 8], "little")


def groups(state: ThreadState) -> list[FrameGroup]:
    """The frames by native evaluation loop, innermost first: the i-th group belongs to the i-th innermost native
    frame of ``_PyEval_EvalFrameDefault``, as long as the innermost loop is not being entered or left right now;
    ``match`` is exact then, too."""
    return list(state.runtime.frames.stack(state).groups)


def thread_groups(states: Sequence[ThreadState]) -> list[FrameGroup]:
    """The groups of one native thread that has several thread states (subinterpreters), innermost first.

    Without anchors (3.8, 3.9) the states are taken in the given order, newest interpreter first.
    """
    found = [group for state in states for group in groups(state)]
    if len(states) > 1 and all(group.anchor is not None for group in found):
        found.sort(key=lambda group: group.anchor or 0)
    return found


def match(found: Sequence[FrameGroup], loops: Sequence[tuple[int, int]]) -> list[FrameGroup | None]:
    """The group of each native evaluation loop; None for a loop that has no Python frame (yet).

    ``loops`` are the native frames of the evaluation loop, innermost first, as (sp, cfa). Groups with an anchor
    are matched by address. Without anchors (3.8, 3.9) the outermost ones belong together, unless the outermost
    groups are missing; an innermost loop without a group is one that is being entered or left.
    """
    anchored = sorted((group.anchor, position) for position, group in enumerate(found) if group.anchor is not None)
    if anchored:
        return [_inside(loop, anchored, found) for loop in loops]
    padding: list[FrameGroup | None] = [None] * max(len(loops) - len(found), 0)
    if found and found[-1].cut:
        return [*found, *padding][: len(loops)]
    return [*padding, *found[-len(loops) :]] if loops else []


def _inside(
    loop: tuple[int, int], anchored: Sequence[tuple[int, int]], found: Sequence[FrameGroup]
) -> FrameGroup | None:
    """The group whose anchor lies in the loop's frame; a search, since stacks can have 25,000 loops."""
    sp, cfa = loop
    at = bisect_left(anchored, (sp, 0))
    return found[anchored[at][1]] if at < len(anchored) and anchored[at][0] < cfa else None
