"""Runaway redispatch: an operator, or a group of operators, that enters itself without end. Repetition alone proves
nothing (Autograd → CPU, nested vmap, Python code that returns). Proofs are, from the strongest to the weakest:

* a *redispatch* with the identical keyset: the table gives the very kernel that just did this, again;
* a *call* with identical keysets and identical arguments, very often;
* any of it when the stack has overflown."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.repetitions import longest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from gdbext.torch.stack import DispatchFrame

    SameArguments = Callable[[Sequence[int], int], bool]
    """(positions of the steps of a repetition, its period) → the same arguments stand at the same places of its
    periods, as far as each operator's can be read at all."""

MAX_PERIOD = 64
"""Longest group of steps that is tried."""
REDISPATCHES = 8
"""Identical redispatches: a kernel that redispatches to itself this often depends on nothing that changes."""


class Recursion(NamedTuple):
    """A runaway recursion: ``group`` is one period, innermost first; ``depth`` the number of full repetitions."""

    group: tuple[DispatchFrame, ...]
    depth: int
    steps: int
    """Steps that belong to the repetition."""
    why: str
    """The reason why this is endless."""

    @property
    def innermost(self) -> DispatchFrame:
        return self.group[0]


def detect(
    steps: Sequence[DispatchFrame],
    python_levels: Sequence[int] = (),
    overflown: bool = False,
    same_arguments: SameArguments = lambda _positions, _period: False,
    complete: bool = True,
) -> Recursion | None:
    """The runaway recursion in a thread's steps (innermost first), or None. ``python_levels``: levels of its Python
    frames, ascending; ``overflown``: it ended in a stack overflow; ``complete``: no step is missing."""
    block = longest(_step_identities(steps), MAX_PERIOD) if len(steps) >= REDISPATCHES else None
    if not block:
        return None
    part = steps[block.start : block.start + block.length]
    # Python frames between the innermost and the outermost step of the repetition, and those of one turn beside it that
    # may be at either end, where it has only begun.
    first, last = bisect_left(python_levels, part[0].level), bisect_left(python_levels, part[-1].level)
    turn = (last - first) // block.times
    python_frames = last - first + min(turn, first) + min(turn, len(python_levels) - last)
    redispatches = all(step.event and step.event.is_redispatch for step in part) and any(step.keyset for step in part)
    # 290 of the 300 Python frames of a stack: a few are before the repetition and after it. A call takes two frames at
    # least, OpOverload.__call__ (torch/_ops.py) and the kernel's own.
    is_long = python_frames >= 290 or (not python_frames and block.times >= 100)
    if block.times >= REDISPATCHES and not python_frames and redispatches:
        why = "each redispatch has the keyset of the one before, so the table leads to the same kernel again"
    elif overflown and block.times >= 50 and block.length * 2 >= len(steps):
        why = "the repetition filled the stack until it overflowed"
    elif complete and is_long and same_arguments(range(block.start, block.start + block.length), block.period):
        through = f" through {python_frames} Python frames" if python_frames else ""
        why = f"{block.times} repetitions{through} with the same keysets and the same arguments"
    else:
        return None
    group = []
    for at in range(block.period):  # each step from a turn that knows its keyset and its kernel
        best = max(part[at :: block.period][:64], key=lambda step: (step.keyset is not None, step.kernel is not None))
        group.append(best._replace(level=part[at].level))
    return Recursion(tuple(group), block.times, block.length, why)


def longest_repetition(steps: Sequence[DispatchFrame]) -> tuple[Sequence[DispatchFrame], int]:
    """(one period of the longest repetition of a stack, its number of turns); ((), 0) without one."""
    block = longest(_step_identities(steps), MAX_PERIOD) if len(steps) >= REDISPATCHES else None
    if not block or block.times < REDISPATCHES:
        return (), 0
    return steps[block.start : block.start + block.period], block.times


def _step_identities(steps: Sequence[DispatchFrame]) -> list[Hashable]:
    """One item per step, equal for steps that repeat: operator, overload, event and keyset bits. A keyset that was not
    recovered is taken from steps with equal operator, event and kernel, if these have only one."""
    bits_of_place: dict[Hashable, set[int]] = {}
    places = []
    for step in steps:
        place = (step.op, step.overload, step.event, step.kernel.function if step.kernel else None)
        places.append(place)
        if step.keyset:
            bits_of_place.setdefault(place, set()).add(step.keyset.bits)
    items: list[Hashable] = []
    for step, place in zip(steps, places):
        bits = {step.keyset.bits} if step.keyset else bits_of_place.get(place, set())
        items.append((*place[:3], min(bits)) if len(bits) == 1 else (*place[:3], "?", place[3]))
    return items
