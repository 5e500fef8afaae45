"""Python frames of a native stack: which native frame evaluates which of them."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.cpython.threads.frame_reader import match
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.cpython.threads.thread_state import ThreadState
from gdbext.model.frame import Frame, FrameKind
from gdbext.unwind.stack import Stack


def python_frames(
    runtime: PythonRuntime, states: Sequence[ThreadState], stack: Stack
) -> tuple[tuple[Frame, ...], tuple[str, ...]]:
    """(the Python frames innermost first, each at the level of the native frame that evaluates it; what could not be
    read). Raises MemoryFault, BadData."""
    loops = _evaluation_loops(runtime, stack) if states else []
    if not loops:
        return (), ()
    problems = [runtime.frames.stack(state).problem for state in states]
    spans = [(stack.frames[level].sp, stack.frames[level].cfa) for level in loops]
    groups = match(runtime.frames.groups(states), spans)
    frames = tuple(
        Frame(level, FrameKind.PYTHON, frame.function, file=frame.file, line=frame.line)
        for level, group in zip(loops, groups)
        for frame in group or ()
    )
    return frames, tuple(f"Python frames: {problem}" for problem in problems if problem)


def _evaluation_loops(runtime: PythonRuntime, stack: Stack) -> list[int]:
    """Levels of the native frames that run Python code."""
    evaluates = runtime.layout.abi.evaluates
    functions = ((level, stack.function(level)) for level in range(len(stack)))
    return [level for level, function in functions if function is not None and evaluates(function.names)]
