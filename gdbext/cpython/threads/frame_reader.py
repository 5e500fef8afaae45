"""Python frames of a thread, and which native frame of the evaluation loop runs which of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from gdbext.cpython.abi.python_abi import FrameObjects
from gdbext.cpython.abi.python_layout import PythonLayout
from gdbext.cpython.objects.code import CodeCache
from gdbext.cpython.threads.frame_objects import FrameObjectReader
from gdbext.cpython.threads.interpreter_frames import InterpreterFrameReader
from gdbext.cpython.threads.python_frame import FRAME_LIMIT, FrameGroup, IncompleteGroup, PythonStack
from gdbext.cpython.threads.thread_state import ThreadState
from gdbext.errors import BadData, MemoryFault
from gdbext.process.memory import Memory

MAX_ADDRESS = (1 << 64) - 1


class FrameReader:
    """Reads the Python frames of one runtime's threads; each thread's once, for as long as the target stands still."""

    def __init__(self, memory: Memory, layout: PythonLayout, codes: CodeCache) -> None:
        self._reader = _reader_for(memory, layout, codes)
        self._stacks: dict[int, PythonStack] = {}

    def stack(self, state: ThreadState) -> PythonStack:
        """All Python frames of a thread. What could not be read ends the walk with a problem."""
        known = self._stacks.get(state.address)
        if known is None:
            known = self._stacks[state.address] = self._read_stack(state)
        return known

    def groups(self, states: Sequence[ThreadState]) -> list[FrameGroup]:
        """The groups of one native thread, innermost first; it has several thread states with subinterpreters.

        The i-th group belongs to the i-th innermost evaluation loop, as long as the innermost loop is not being entered
        or left right now; ``place_groups`` is exact then, too. Without anchors the states are taken in the given order,
        newest interpreter first.
        """
        found = [group for state in states for group in self.stack(state).groups]
        if len(states) > 1 and all(group.anchor is not None for group in found):
            found.sort(key=lambda group: group.anchor or 0)
        return found

    def _read_stack(self, state: ThreadState) -> PythonStack:
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
        return PythonStack(tuple(groups), problem)


def _reader_for(memory: Memory, layout: PythonLayout, codes: CodeCache) -> FrameObjectReader | InterpreterFrameReader:
    form = layout.abi.frames
    if isinstance(form, FrameObjects):
        return FrameObjectReader(memory, layout, codes, form)
    return InterpreterFrameReader(memory, layout, codes, form)


def place_groups(
    found: Sequence[FrameGroup], frames: Sequence[tuple[int, int]], is_loop: Callable[[int], bool]
) -> list[tuple[int, FrameGroup]]:
    """(level of the native frame that runs it, group), innermost first; a group without such a frame is left out.

    ``frames`` are all native frames, innermost first, as (sp, cfa). A group with an anchor is where that lies, whatever
    the compiler made of the evaluation loop. Groups without anchors belong to the frames for which ``is_loop`` is true,
    the outermost ones together, unless the outermost groups are missing; an innermost loop without a group is one
    that is being entered or left.
    """
    if any(group.anchor is not None for group in found):
        spans = sorted((sp, cfa, level) for level, (sp, cfa) in enumerate(frames))
        placed = [(_level_of(group.anchor, spans), group) for group in found if group.anchor is not None]
        return [(level, group) for level, group in placed if level is not None]
    loops = [level for level in range(len(frames)) if is_loop(level)] if found else []
    if found and found[-1].cut:
        return list(zip(loops, found))
    count = min(len(loops), len(found))
    return list(zip(loops[len(loops) - count :], found[len(found) - count :]))


def _level_of(address: int, spans: Sequence[tuple[int, int, int]]) -> int | None:
    """The frame whose part of the stack has an address; a search, since stacks can have 25,000 loops."""
    at = bisect_right(spans, (address, MAX_ADDRESS, 0)) - 1
    return spans[at][2] if at >= 0 and address < spans[at][1] else None
