"""Python frames of a native stack: which native frame evaluates which of them."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.cpython.threads.frame_reader import place_groups
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.cpython.threads.thread_state import ThreadState
from gdbext.model.threads.frame import Frame, FrameKind
from gdbext.unwind.stack import Stack


def python_frames(
    runtime: PythonRuntime, states: Sequence[ThreadState], stack: Stack
) -> tuple[tuple[Frame, ...], tuple[str, ...]]:
    """(the Python frames innermost first, each at the level of the native frame that evaluates it; what could not be
    read). Raises MemoryFault, BadData."""
    problems = [runtime.frames.stack(state).problem for state in states]
    groups = runtime.frames.groups(states) if states else []
    spans = [(frame.sp, frame.cfa) for frame in stack.frames]
    placed = place_groups(groups, spans, lambda level: _is_loop(runtime, stack, level))
    if not placed and any(groups):
        placed = [(len(spans) - 1, group) for group in groups]
        problems.append("no native frame is known to evaluate them; they stand at the outermost one")
    frames = tuple(
        Frame(level, FrameKind.PYTHON, frame.function, file=frame.file, line=frame.line)
        for level, group in placed
        for frame in group
    )
    return frames, tuple(f"Python frames: {problem}" for problem in problems if problem)


def _is_loop(runtime: PythonRuntime, stack: Stack, level: int) -> bool:
    """The native frame runs Python code, by the name of its function."""
    function = stack.function(level)
    return function is not None and runtime.layout.abi.evaluates(function.names)
