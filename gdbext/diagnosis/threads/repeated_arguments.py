"""Compares the arguments of the levels of a recursion: one that ends gets other ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.engine.repetitions import longest
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
    from gdbext.torch.stack import DispatchFrame


def have_same_arguments(session: Session, snapshot: ThreadSnapshot, positions: Sequence[int], period: int) -> bool:
    """The dispatcher's steps at ``positions``, ``period`` of them in each level, are proven to have the same arguments
    in each.

    Arguments of operators are compared as far as they can be read; if Python is in between, also the objects with which
    its functions were called.
    """
    try:
        same = _same_operator_arguments(session, snapshot, positions, period)
    except GdbextError:
        return False
    first, last = (snapshot.dispatch[at].level for at in (positions[0], positions[-1]))
    if same is False or not any(first <= frame.level <= last for frame in snapshot.python):
        return same is True
    # (code, objects with which it was called) of each frame; no objects for functions that only pass arguments on.
    stack = session.python_threads.frames(snapshot.tid).innermost(4000)
    passing_on = ("/torch/", "<frozen ")
    calls = [
        (frame.code, () if any(part in frame.file for part in passing_on) else stack.arguments(frame, 32))
        for frame in stack
    ]
    block = longest(calls, 200)
    if not block or block.times * 2 < len(positions) // period:
        return False
    return any(objects for _, objects in calls[block.start : block.start + block.period])


def _same_operator_arguments(
    session: Session, snapshot: ThreadSnapshot, positions: Sequence[int], period: int
) -> bool | None:
    """True: equal, and each operator's were read; False: some differ; None: not all could be read.

    Only some levels are compared: the 6 innermost ones (a number that counts down differs from one to the next), and 6
    others all over the stack.
    """
    times = len(positions) // period
    turns = sorted({*range(min(6, times)), *range(0, times, max(1, times // 6))})
    wanted = {positions[turn * period + place] for turn in turns for place in range(period)}
    steps = ArgumentReporter(session).at(snapshot.stack, wanted)
    was_read: dict[str, bool] = {}
    for place in range(period):
        column = [steps[positions[turn * period + place]] for turn in turns]
        if _differ(column):
            return False
        operator = column[0].qualified
        is_known = all(step.arguments and all(argument.text for argument in step.arguments) for step in column)
        was_read[operator] = was_read.get(operator, False) or is_known
    return True if all(was_read.values()) else None


def _differ(steps: Sequence[DispatchFrame]) -> bool:
    """An argument is known to have different values in these steps."""
    values: dict[str, tuple[object, ...]] = {}
    for step in steps:
        for argument in step.arguments:
            if argument.text:
                value = (argument.text, tuple(tensor.address for tensor in argument.tensors))
                if values.setdefault(argument.name, value) != value:
                    return True
    return False
