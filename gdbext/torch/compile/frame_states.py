"""What torch.compile has to do with each Python frame of a stack: by code objects, files and functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gdbext.cpython.threads.python_frame import PythonFrame
from gdbext.model.sections.compile_section import FrameState
from gdbext.torch.compile import dynamo_names as names


def is_compiler(frame: PythonFrame) -> bool:
    """Its callees are the compiler at work."""
    file, functions = names.LATE_COMPILER
    plain = frame.function.rpartition(".")[2]
    for place, function in (names.COMPILER, names.TRITON_COMPILER):
        if frame.file.endswith(place):
            return plain == function
    return frame.file.endswith(file) and plain in functions


def states(frames: Sequence[PythonFrame], compiled_codes: Collection[int]) -> list[FrameState]:
    """The state of each frame, innermost first: a frame inside of the innermost call of the compiler is part of it."""
    compilers = [index for index, frame in enumerate(frames) if is_compiler(frame)]
    outermost = compilers[-1] if compilers else -1
    return [
        FrameState.COMPILING if index <= outermost else _state(frame, compiled_codes)
        for index, frame in enumerate(frames)
    ]


def _state(frame: PythonFrame, compiled_codes: Collection[int]) -> FrameState:
    if frame.code in compiled_codes or names.is_generated(frame.file):
        return FrameState.COMPILED
    return FrameState.EAGER


def stage(frames: Sequence[PythonFrame]) -> str:
    """The part of the compiler that the innermost frame of torch belongs to; "" for none."""
    for frame in frames:
        for part, name in names.STAGES:
            if part in frame.file:
                return name
    return ""
