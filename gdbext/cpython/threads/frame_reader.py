"""The interpreters, their threads and the Python frames of each, with the native frame of the evaluation loop that runs
them.

Up to 3.10 each call has a PyFrameObject (frameobject.h) and an evaluation loop. Later a call from Python to Python
stays in the same native evaluation loop, which runs a group of _PyInterpreterFrame (pycore_frame.h). Groups are divided
by what each loop has on the native stack: a _PyCFrame (cpython/pystate.h of 3.11), since 3.13 an entry frame, which has
an owner of its own (enum _frameowner).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import suppress
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import FrameObjects, InterpreterFrames, LoopAnchor
from gdbext.cpython.abi.python_structures import CFrame, PyFrameObject, PyInterpreterFrame, PyThreadState
from gdbext.cpython.objects.code import CODE_UNIT, Code, CodeCache
from gdbext.engine.layouts.declarations import Space
from gdbext.errors import BadData, MemoryFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gdbext.cpython.abi.python_layout import PythonLayout
    from gdbext.engine.process.memory import Memory


class Interpreter(NamedTuple):
    """One PyInterpreterState: ``id`` is 0 for the main interpreter."""

    address: int
    id: int


class ThreadState(NamedTuple):
    """One PyThreadState. ``ident`` is threading.get_ident(), the thread's pthread_t; ``native_id`` its tid in the
    process's own PID namespace (stale in a forked child of some versions), None if the version does not record it."""

    address: int
    interpreter: Interpreter
    ident: int
    native_id: int | None


FRAME_LIMIT = 1_000_000  # most Python frames of one thread that are walked


class PythonFrame(NamedTuple):
    """One Python frame. ``function``: the qualified name where the version has it, else the plain name; ``line``: the
    current one, None if the compiler gave none; ``address``: of the PyFrameObject or _PyInterpreterFrame; ``code``:
    address of the code object."""

    function: str
    file: str
    line: int | None
    address: int
    code: int

    @property
    def name(self) -> str:
        """The function's name without those of its class or outer function."""
        return self.function.rpartition(".")[2]

    @property
    def call(self) -> tuple[str, str]:
        """(file name without folders, ``name``): ``("queue.py", "get")``."""
        return self.file.rpartition("/")[2], self.name

    @property
    def place(self) -> str:
        """``/srv/train.py:8 (step)``."""
        return f"{self.file}:{self.line} ({self.function})"


class FrameGroup(list[PythonFrame]):
    """The Python frames that one native evaluation loop runs, innermost first. ``anchor``: an address inside that
    loop's native stack frame, None if the version has nothing there; ``cut``: the callers could not be read, so the
    groups that should follow are missing."""

    def __init__(self, frames: Sequence[PythonFrame], anchor: int | None, cut: bool = False) -> None:
        super().__init__(frames)
        self.anchor = anchor
        self.cut = cut


class PythonStack(NamedTuple):
    """All groups of a thread, innermost first; ``problem``: why the walk ended early, None if it did not."""

    groups: tuple[FrameGroup, ...]
    problem: str | None

    @property
    def frames(self) -> list[PythonFrame]:
        """All frames of the thread, innermost first."""
        return [frame for group in self.groups for frame in group]


class IncompleteGroup(Exception):
    """A group could not be read to its end; ``group`` has the frames that were read."""

    def __init__(self, group: FrameGroup, problem: str) -> None:
        super().__init__(problem)
        self.group = group
        self.problem = problem


def linked_frames(memory: Memory, address: int, previous_at: int) -> Iterator[int]:
    """Addresses of the frame at ``address`` and its callers; ``previous_at``: offset in bytes of the link to a caller.
    Raises MemoryFault, BadData for a list without end."""
    seen: set[int] = set()
    while address:
        if address in seen:
            raise BadData(f"the frame at {address:#x} is its own caller")
        if len(seen) >= FRAME_LIMIT:
            raise BadData(f"truncated at {FRAME_LIMIT} frames")
        seen.add(address)
        yield address
        address = memory.u64(address + previous_at)


def c_frames(state: PyThreadState) -> Iterator[int]:
    """Addresses of the _PyCFrame (CFrame in 3.10) of each evaluation loop, innermost first, up to the thread state's
    own. Each is a local variable of its loop, so it lies inside the loop's native stack frame."""
    root, space = state.root_cframe.address, state.space
    frames = linked_frames(space.memory, state.cframe, CFrame.previous.offset(space))
    return takewhile(lambda address: address != root, frames)


class FrameObjectReader:
    """Reads the frame objects of a thread and groups them by evaluation loop (3.8 to 3.10)."""

    def __init__(self, space: Space, codes: CodeCache, form: FrameObjects) -> None:
        self._space = space
        self._codes = codes
        self._form = form

    def groups(self, state: ThreadState) -> Iterator[FrameGroup]:
        """One group for each evaluation loop, innermost first; a generator through which throw() passes has none.
        Raises MemoryFault, BadData."""
        thread = PyThreadState(self._space, state.address)
        anchors = c_frames(thread) if thread.has(PyThreadState.cframe) else iter(())
        passing: list[PythonFrame] = []
        last: FrameGroup | None = None
        for frame, code, at in self._frames(thread.frame):
            # A generator that is suspended in ``yield from`` while on the stack: genobject.c's _gen_throw put it there
            # without an evaluation loop. When it runs, the current instruction is YIELD_FROM itself.
            opcode = self._form.yield_from
            is_generator = PyFrameObject(self._space, frame.address).f_gen and at >= 0
            if is_generator and code.opcode(at) != opcode and code.opcode(at + CODE_UNIT) == opcode:
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

    def _frames(self, address: int) -> Iterator[tuple[PythonFrame, Code, int]]:
        """(frame, its code, byte offset of its instruction) of the PyFrameObject at ``address`` and its callers."""
        for frame_address in linked_frames(self._space.memory, address, PyFrameObject.f_back.offset(self._space)):
            frame = PyFrameObject(self._space, frame_address)
            code = self._codes.get(frame.f_code)
            at = frame.f_lasti * self._form.lasti_unit
            yield PythonFrame(code.name, code.file, code.line(at), frame_address, code.address), code, at

    def suspended(self, frame: int, *_: int) -> Iterator[PythonFrame]:
        """The frames of a greenlet from the PyFrameObject at ``frame`` on, none of which is on its native stack. Raises
        MemoryFault, BadData."""
        return (python_frame for python_frame, _, _ in self._frames(frame))


_WORD = 8
_word = struct.Struct("<Q").unpack_from


class InterpreterFrameReader:
    """Reads the interpreter frames of a thread and groups them by evaluation loop (3.11 and later)."""

    def __init__(self, space: Space, codes: CodeCache, form: InterpreterFrames) -> None:
        self._space = space
        self._memory = space.memory
        self._codes = codes
        self._form = form
        self._address_mask = ~form.tag_bits
        self._code_at = form.code.offset(space)
        self._previous_at = PyInterpreterFrame.previous.offset(space)
        self._instruction_at = form.instruction.offset(space)
        self._owner_at = PyInterpreterFrame.owner.offset(space)
        self._frame_size = _WORD + max(self._code_at, self._instruction_at, self._owner_at)  # bytes that are read

    def groups(self, state: ThreadState) -> Iterator[FrameGroup]:
        """One group for each evaluation loop. Raises MemoryFault, BadData, IncompleteGroup."""
        thread = PyThreadState(self._space, state.address)
        if self._form.anchor is LoopAnchor.ENTRY_FRAME:
            base = thread.base_frame if thread.has(PyThreadState.base_frame) else 0
            yield from self._groups_by_entry_frame(thread.current_frame, base)
            return
        # Each _PyCFrame knows the innermost frame of its loop; the next one's is where it ends.
        anchors = list(c_frames(thread))
        tops = [CFrame(self._space, anchor).current_frame for anchor in anchors]
        for anchor, top, end in zip(anchors, tops, [*tops[1:], 0]):
            yield self._group(self._frames_until(top, end), anchor)

    def suspended(self, frame: int, start: int, copy: int, size: int) -> Iterator[PythonFrame]:
        """The frames of a greenlet from the PyFrameObject at ``frame`` on. Since 3.12 entry frames, which have no code,
        are on its native stack, whose ``size`` bytes at ``start`` were moved to ``copy``. Raises MemoryFault,
        BadData."""
        address, seen = PyFrameObject(self._space, frame).f_frame, set[int]()
        while address and address not in seen:
            seen.add(address)
            moved = start <= address < start + size
            python_frame = None if moved else self._frame(address)
            if python_frame:
                yield python_frame
            at = address - start + copy if moved else address
            address = self._memory.u64(at + self._previous_at)

    def _frames_until(self, address: int, end: int) -> Iterator[int]:
        """Addresses of the frames from ``address`` on, without ``end`` and its callers."""
        return takewhile(lambda frame: frame != end, linked_frames(self._memory, address, self._previous_at))

    def _groups_by_entry_frame(self, top: int, base: int) -> Iterator[FrameGroup]:
        """The groups from the frame ``top`` on: each ends at the entry frame of its loop. ``base``: address of an entry
        frame that belongs to no loop, outside all others."""
        pending: list[int] = []
        try:
            for address in self._frames_until(top, base):
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
        """Read the frames of one loop, without those that Python does not show either. Raises IncompleteGroup."""
        group = FrameGroup((), anchor)
        try:
            group.extend(filter(None, map(self._frame, addresses)))
        except (BadData, MemoryFault) as error:
            raise IncompleteGroup(group, str(error)) from error
        return group

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


class FrameReader:
    """Reads the Python frames of one runtime's threads, those of each thread once."""

    def __init__(self, memory: Memory, layout: PythonLayout, codes: CodeCache) -> None:
        form, space = layout.abi.frames, Space(memory, layout)
        self._reader: FrameObjectReader | InterpreterFrameReader
        if isinstance(form, FrameObjects):
            self._reader = FrameObjectReader(space, codes, form)
        else:
            self._reader = InterpreterFrameReader(space, codes, form)
        self._stacks: dict[int, PythonStack] = {}

    def stack(self, state: ThreadState) -> PythonStack:
        """All Python frames of a thread, up to the first that cannot be read, in groups. Raises nothing."""
        if state.address in self._stacks:
            return self._stacks[state.address]
        groups: list[FrameGroup] = []
        problem = None
        try:
            count = 0
            for group in self._reader.groups(state):
                groups.append(group)
                count += len(group)
                if count >= FRAME_LIMIT:
                    problem = f"truncated at {count} frames"
                    break
        except IncompleteGroup as error:
            groups.append(error.group)
            problem = error.problem
        except (BadData, MemoryFault) as error:
            problem = str(error)
        if groups and problem is not None:
            groups[-1].cut = True
        elif groups and groups[-1].cut:
            problem = "the callers of a generator are not linked while throw() passes through it (CPython 3.9)"
        stack = self._stacks[state.address] = PythonStack(tuple(_without_parents(groups)), problem)
        return stack

    def groups(self, states: Sequence[ThreadState]) -> list[FrameGroup]:
        """The groups of a native thread's states (several with subinterpreters), innermost first; without anchors in
        the order of the states, newest interpreter first. The i-th group belongs to the i-th innermost evaluation loop,
        unless the innermost one is just being entered or left (see ``place_groups``)."""
        groups = [group for state in states for group in self.stack(state).groups]
        if len(states) > 1 and all(group.anchor is not None for group in groups):
            groups.sort(key=lambda group: group.anchor or 0)
        return groups

    def suspended(self, frame: int, start: int, copy: int, size: int) -> list[PythonFrame]:
        """The frames of a greenlet that is switched out, from the PyFrameObject at ``frame`` on, innermost first, up to
        the first that cannot be read. ``size`` bytes of its native stack were moved from ``start`` to ``copy``."""
        frames: list[PythonFrame] = []
        with suppress(BadData, MemoryFault):
            frames.extend(islice(self._reader.suspended(frame, start, copy, size), FRAME_LIMIT))
        return frames


_FORK, _CHILD = ("popen_fork.py", "_launch"), ("process.py", "_bootstrap")
"""(file, function) that forks for multiprocessing, and the first one that runs in the child alone."""


def _without_parents(groups: Sequence[FrameGroup]) -> Iterator[FrameGroup]:
    """The groups without the frames that a forked process has inherited from its parent: in the child, the callers of
    the fork never run, and their variables are the parent's."""
    called = ("", "")
    for group in groups:
        for level, frame in enumerate(group):
            if frame.call == _FORK and called == _CHILD:
                yield FrameGroup(group[: level + 1], group.anchor, cut=True)
                return
            called = frame.call
        yield group


def place_groups(
    groups: Sequence[FrameGroup], frames: Sequence[tuple[int, int]], is_loop: Callable[[int], bool]
) -> list[tuple[int, FrameGroup]]:
    """(index of the native frame that runs it, group), innermost first, without groups that have no such frame.

    ``frames``: (sp, cfa) of all native frames, innermost first; ``is_loop(index)``: the frame is an evaluation loop's.
    A group with an anchor belongs to the frame that contains the anchor. Others belong to the evaluation loops in
    order, from the outermost on, or from the innermost on if the outermost groups are missing; an innermost loop
    without a group is being entered or left.
    """
    if frames and any(group.anchor is not None for group in groups):
        starts = [sp for sp, _ in frames]
        levels: Sequence[int] = range(len(frames))
        if starts != sorted(starts):  # a handler runs on a stack of its own
            levels = sorted(levels, key=starts.__getitem__)
            starts.sort()
        anchored = ((group, group.anchor) for group in groups if group.anchor is not None)
        placed = [(levels[bisect_right(starts, anchor) - 1], group, anchor) for group, anchor in anchored]
        return [(level, group) for level, group, anchor in placed if frames[level][0] <= anchor < frames[level][1]]
    loops = [level for level in range(len(frames)) if is_loop(level)] if groups else []
    if groups and groups[-1].cut:
        return list(zip(loops, groups))
    count = min(len(loops), len(groups))
    return list(zip(loops[len(loops) - count :], groups[len(groups) - count :]))
