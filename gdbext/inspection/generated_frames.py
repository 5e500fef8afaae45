"""Native frames of kernels that Inductor generated, which all are called "kernel", with their names and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from gdbext.model.threads.frame import Frame, FrameKind
from gdbext.torch.compile.inductor_source import KERNEL

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

_PART = f"{KERNEL}._omp_fn."
"""The beginning of what GCC calls a part of it that OpenMP's threads run."""


def named_kernels(session: Session, frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames; those of generated kernels with the kernel's name and its C++ file."""
    if session.python is None or not any(map(_is_candidate, frames)):
        return tuple(frames)
    by_library = {PurePosixPath(each.library).name: each for each in session.generated_kernels.all}
    return tuple(
        frame._replace(function=kernel.name + frame.function[len(KERNEL) :], file=kernel.source)
        if _is_candidate(frame) and (kernel := by_library.get(frame.module)) is not None
        else frame
        for frame in frames
    )


def _is_candidate(frame: Frame) -> bool:
    return frame.kind is FrameKind.NATIVE and (frame.function == KERNEL or frame.function.startswith(_PART))
