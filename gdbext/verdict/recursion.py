"""Runaway redispatch: the same operator, or a group of operators, that enters itself again without end.

A repeated operator alone proves nothing: Autograd → CPU is the same operator with another keyset, nested vmap
levels and Python code may call one operator at many depths and come back. What shows that it has no end is, from the
strongest to the weakest:

* a *redispatch* with the identical keyset: the table gives the very kernel that just did this, again;
* a *call* in native code with identical keysets, very often;
* the same with Python in between, in more Python frames than honest code takes;
* any of it when the stack has already run over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence

from gdbext.model.dispatch.dispatch_frame import DispatchFrame
from gdbext.model.judgement.repetition import Repetition, longest
from gdbext.model.record import Record

MAX_PERIOD = 64
"""Longest group of steps that is tried."""
REDISPATCHES = 8
"""Identical redispatches: a kernel that goes back into itself this often does not look at anything that changes."""
NATIVE_CALLS = 100
"""Identical calls with no Python in between: recursive kernels that end (a tree, a split) stay far below."""
PYTHON_FRAMES = 800
"""Python frames of a repetition through Python: near the interpreter's default recursion limit of 1000, however many
operators share them. A call takes two frames at least, OpOverload.__call__ (torch/_ops.py) and the kernel's own."""
OVERFLOWN = 50
"""What suffices when the stack has run over, provided that the repetition makes up most of the stack."""


class Recursion(Record):
    """A runaway recursion: ``group`` is one period, innermost first; ``depth`` the number of full repetitions."""

    group: tuple[DispatchFrame, ...]
    depth: int
    steps: int
    """Steps that belong to the repetition."""
    why: str
    """What makes this endless."""

    @property
    def innermost(self) -> DispatchFrame:
        """The innermost step of one period."""
        return self.group[0]


def detect(
    steps: Sequence[DispatchFrame], python_levels: Sequence[int] = (), overflown: bool = False
) -> Recursion | None:
    """The runaway recursion in a thread's steps (innermost first), or None.

    ``python_levels`` are the levels of the thread's Python frames, ascending, one for each frame; ``overflown`` says
    that the thread was stopped by a stack overflow.
    """
    if len(steps) < REDISPATCHES:
        return None
    found = longest(_items(steps), MAX_PERIOD)
    if found is None:
        return None
    part = steps[found.start : found.start + found.length]
    frames = _python_frames(part, python_levels)
    why = _endless(part, found, len(steps), frames, overflown)
    if why is None:
        return None
    group = tuple(_with_known_keyset(part, at, found.period) for at in range(found.period))
    return Recursion(group, found.times, found.length, why)


def _endless(
    part: Sequence[DispatchFrame], found: Repetition, total: int, python_frames: int, overflown: bool
) -> str | None:
    if found.times >= REDISPATCHES and not python_frames and _redispatches(part):
        return "each redispatch has the keyset of the one before, so the table leads to the same kernel again"
    if overflown and found.times >= OVERFLOWN and found.length * 2 >= total:
        return "the repetition filled the stack until it ran over"
    if python_frames >= PYTHON_FRAMES:
        return f"{found.times} repetitions in {python_frames} Python frames, far more than nesting that ends"
    if not python_frames and found.times >= NATIVE_CALLS:
        return f"{found.times} repetitions with the same keysets, far more than nesting that ends"
    return None


def _redispatches(part: Sequence[DispatchFrame]) -> bool:
    return all(step.event.is_redispatch for step in part) and any(step.keyset for step in part)


def _python_frames(part: Sequence[DispatchFrame], python_levels: Sequence[int]) -> int:
    """Python frames between the innermost and the outermost step of the repetition."""
    return bisect_left(python_levels, part[-1].level) - bisect_left(python_levels, part[0].level)


def _items(steps: Sequence[DispatchFrame]) -> list[Hashable]:
    """What must repeat: operator, overload and keyset bits.

    A keyset that could not be recovered in one frame stands for the only one known for the same operator,
    event and kernel, where there is exactly one.
    """
    known: dict[Hashable, set[int]] = {}
    for step in steps:
        if step.keyset is not None:
            known.setdefault(_place(step), set()).add(step.keyset.bits)
    items: list[Hashable] = []
    for step in steps:
        bits = {step.keyset.bits} if step.keyset is not None else known.get(_place(step), set())
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
