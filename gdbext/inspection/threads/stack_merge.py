"""Native and Python frames of a thread as one stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.model.threads.frame import Frame, FrameKind

if TYPE_CHECKING:
    from gdbext.torch.stack.roles import FunctionRole
    from gdbext.unwind.stack import Stack

_ORDINARY = ("registers", "cfi", "signal")
"""Ways of unwinding that nobody need be told of."""


def merged_frames(stack: Stack, python: Sequence[Frame], roles: Sequence[FunctionRole] = ()) -> tuple[Frame, ...]:
    """Native frames, each below the Python frames that it evaluates. ``roles``: of the native frames, if known."""
    merged: list[Frame] = []
    position = 0
    for level in range(len(stack)):
        while position < len(python) and python[position].level == level:
            merged.append(python[position])
            position += 1
        merged.append(_native_frame(stack, level, roles[level].role.value if roles else ""))
    return tuple(merged)


def _native_frame(stack: Stack, level: int, role: str) -> Frame:
    frame = stack.frames[level]
    function = stack.function(level)
    how = "" if frame.how in _ORDINARY else f"unwound by {frame.how}"
    return Frame(
        level,
        FrameKind.NATIVE,
        function.demangled[0] if function is not None else "??",
        module=frame.module.name if frame.module is not None else "",
        pc=frame.pc,
        role=" ".join(filter(None, ("signal handler called" if frame.is_signal else role, how))),
    )
