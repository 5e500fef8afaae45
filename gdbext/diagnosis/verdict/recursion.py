"""Runaway redispatch: the same operator, or a group of operators, that enters itself again without end.

A repeated operator alone proves nothing: Autograd → CPU is the same operator with another keyset, nested vmap
levels and Python code may call one operator at many depths and come back. What shows that it has no end is, from the
strongest to the weakest:

* a *redispatch* with the identical keyset: the table gives the very kernel that just did this, again;
* a *call* with identical keysets and identical arguments, very often;
* any of it when the stack has already run over.

Levels whose arguments differ or cannot be read, or between which passes may be missing, prove nothing: a recursion that
ends may be thousands of levels deep.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.repetitions import longest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from gdbext.engine.repetitions import Repetition
    from gdbext.torch.stack import DispatchFrame

    SameArguments = Callable[[Sequence[int], int], bool]
    """(positions of the steps of a repetition, its period) → the same arguments stand at the same places of its
    periods, as far as each operator's can be read at all."""

MAX_PERIOD = 64
"""Longest group of steps that is tried."""
REDISPATCHES = 8
"""Identical redispatches: a kernel that goes back into itself this often does not look at anything that changes."""
NATIVE_CALLS = 100
"""Identical calls with no Python in between."""
PYTHON_FRAMES = 290
"""Python frames of a repetition through Python, however many operators share them: of a stack of 300 a few are before
it and behind it. A call takes two frames at least, OpOverload.__call__ (torch/_ops.py) and the kernel's own."""
OVERFLOWN = 50
"""The repetitions that suffice when the stack has run over, provided that they make up most of the stack."""


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
        """The innermost step of one period."""
        return self.group[0]


def never_the_same(_positions: Sequence[int], _period: int) -> bool:
    """The comparison for threads of which no argument can be read."""
    return False


def detect(
    steps: Sequence[DispatchFrame],
    python_levels: Sequence[int] = (),
    overflown: bool = False,
    same_arguments: SameArguments = never_the_same,
    complete: bool = True,
) -> Recursion | None:
    """The runaway recursion in a thread's steps (innermost first), or None.

    ``python_levels`` are the levels of the thread's Python frames, ascending, one for each frame; ``overflown`` says
    that the thread was stopped by a stack overflow, ``complete`` that no steps may be missing.
    """
    if len(steps) < REDISPATCHES:
        return None
    found = longest(_items(steps), MAX_PERIOD)
    if not found:
        return None
    part = steps[found.start : found.start + found.length]
    frames = _python_frames(part, python_levels, found.times)
    why = _endless(part, found, len(steps), frames, overflown)
    if why is None and complete:
        why = _goes_in_circles(found, frames, same_arguments)
    if why is None:
        return None
    group = tuple(_with_known_keyset(part, at, found.period) for at in range(found.period))
    return Recursion(group, found.times, found.length, why)


def _endless(
    part: Sequence[DispatchFrame], found: Repetition, total: int, python_frames: int, overflown: bool
) -> str | None:
    redispatches = all(step.event and step.event.is_redispatch for step in part)
    if found.times >= REDISPATCHES and not python_frames and redispatches and any(step.keyset for step in part):
        return "each redispatch has the keyset of the one before, so the table leads to the same kernel again"
    if overflown and found.times >= OVERFLOWN and found.length * 2 >= total:
        return "the repetition filled the stack until it ran over"
    return None


def _goes_in_circles(found: Repetition, python_frames: int, same_arguments: SameArguments) -> str | None:
    """Calls that repeat with the same keysets and the same arguments. A recursion that ends gets other ones."""
    if python_frames < PYTHON_FRAMES and (python_frames or found.times < NATIVE_CALLS):
        return None
    if not same_arguments(range(found.start, found.start + found.length), found.period):
        return None
    through = f" through {python_frames} Python frames" if python_frames else ""
    return f"{found.times} repetitions{through} with the same keysets and the same arguments"


def repeating(steps: Sequence[DispatchFrame]) -> tuple[Sequence[DispatchFrame], int]:
    """(one period of the longest repetition of a stack, how often it stands there); ((), 0) without one."""
    found = longest(_items(steps), MAX_PERIOD) if len(steps) >= REDISPATCHES else None
    if not found or found.times < REDISPATCHES:
        return (), 0
    return steps[found.start : found.start + found.period], found.times


def _python_frames(part: Sequence[DispatchFrame], python_levels: Sequence[int], times: int) -> int:
    """Python frames between the innermost and the outermost step of the repetition, and those beside it that one turn
    may have at either end, which has only begun there."""
    first, last = bisect_left(python_levels, part[0].level), bisect_left(python_levels, part[-1].level)
    turn = (last - first) // times
    return last - first + min(turn, first) + min(turn, len(python_levels) - last)


def _items(steps: Sequence[DispatchFrame]) -> list[Hashable]:
    """The items that must repeat: operator, overload and keyset bits.

    A keyset that could not be recovered in one frame stands for the only one known for the same operator,
    event and kernel, where there is exactly one.
    """
    known: dict[Hashable, set[int]] = {}
    for step in steps:
        if step.keyset:
            known.setdefault(_place(step), set()).add(step.keyset.bits)
    items: list[Hashable] = []
    for step in steps:
        bits = {step.keyset.bits} if step.keyset else known.get(_place(step), set())
        name = (step.op, step.overload, step.event)
        items.append((*name, min(bits)) if len(bits) == 1 else (*name, "?", _kernel(step)))
    return items


def _place(step: DispatchFrame) -> Hashable:
    return (step.op, step.overload, step.event, _kernel(step))


def _kernel(step: DispatchFrame) -> str | None:
    return step.kernel.function if step.kernel else None


def _with_known_keyset(part: Sequence[DispatchFrame], at: int, period: int) -> DispatchFrame:
    """The period's step number ``at``, taken from a repetition that knows its keyset and its kernel."""
    same = part[at::period]
    best = max(same[:64], key=lambda step: (step.keyset is not None, step.kernel is not None))
    return best._replace(level=part[at].level)
