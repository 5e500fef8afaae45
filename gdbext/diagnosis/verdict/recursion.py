"""Runaway redispatch: the same operator, or a group of operators, that enters itself again without end.

A repeated operator alone proves nothing: Autograd → CPU is the same operator with another keyset, nested vmap
levels and Python code may call one operator at many depths and come back. What shows that it has no end is, from the
strongest to the weakest:

* a *redispatch* with the identical keyset: the table gives the very kernel that just did this, again;
* a *call* with identical keysets and identical arguments, very often;
* any of it when the stack has already run over.

Levels whose arguments differ or cannot be read, or between which passes may be missing, prove nothing: a recursion that
ends may be thousands of levels deep.

A repetition is a block of a sequence that occurs several times in a row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from gdbext.engine.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from gdbext.torch.stack import DispatchFrame

    SameArguments = Callable[[Sequence[int], int], bool]
    """(positions of the steps of a repetition, its period) → the same arguments stand at the same places of its
    periods, as far as each operator's can be read at all."""

FOLD_PERIOD = 24
"""Items in the longest block that is folded; a redispatch cycle through several operators is shorter."""
FOLD_TIMES = 3
"""A block is folded when it stands at least that often in a row."""
_ONE_BYTE = 255
_ZERO_OR_ONE = bytes([0]) + bytes([1]) * _ONE_BYTE


class Repetition(Record):
    """``period`` items from ``start``, standing ``times`` times in a row (1 where nothing repeats)."""

    start: int
    period: int
    times: int

    @property
    def length(self) -> int:
        """Items in all its blocks."""
        return self.period * self.times


def longest(items: Sequence[Hashable], max_period: int) -> Repetition | None:
    """The longest repetition, with its smallest period; None where nothing stands twice in a row.

    Linear in the items for a given ``max_period``.
    """
    codes = _codes(items)
    best: Repetition | None = None
    for period in range(1, min(max_period, len(codes) // 2) + 1):
        start, end = max(_stretches(codes, period), key=lambda stretch: stretch[1] - stretch[0], default=(0, 0))
        found = Repetition(start, period, (end - start) // period + 1)
        if end - start >= period and (best is None or found.length > best.length + period):
            best = found
        if best is not None and best.length * 2 > len(codes):
            break
    return best


def fold(items: Sequence[Hashable], max_period: int = FOLD_PERIOD) -> Iterator[Repetition]:
    """Covers ``items`` by repetitions, in order; where several begin, the one of most items. Linear in the items."""
    codes = _codes(items)
    longest_period = min(max_period, len(codes) // FOLD_TIMES)
    ahead = {period: deque(_stretches(codes, period)) for period in range(1, longest_period + 1)}
    plain = position = 0
    while position < len(codes):
        found = _best_at(position, ahead)
        if found is None:
            position = min((stretches[0][0] for stretches in ahead.values() if stretches), default=len(codes))
            continue
        if plain < position:
            yield Repetition(plain, position - plain, 1)
        yield found
        plain = position = position + found.length
    if plain < len(codes):
        yield Repetition(plain, len(codes) - plain, 1)


MOST_WHOLE = 4000
"""Items of a list in which nothing is folded: deeper than honest recursion goes in Python."""
_WHOLE_PERIOD = 128
"""Items in the longest block of such a list: a turn through Python and the dispatcher takes dozens of native frames."""
_AROUND = 2 * FOLD_PERIOD
"""Steps behind a block's first one that a text may show: it folds frames and steps together."""


def fold_long(items: Sequence[Hashable]) -> Iterator[Repetition]:
    """Fold as ``fold`` does, but only where the list is very long."""
    if len(items) > MOST_WHOLE:
        yield from fold(items, _WHOLE_PERIOD)
    elif items:
        yield Repetition(0, len(items), 1)


def step_key(step: DispatchFrame) -> Hashable:
    """The key that makes a step of a stack equal to another: all but its level, its arguments and the evidence, which
    names addresses on the stack."""
    return step._replace(level=0, evidence=(), arguments=())


def shown_steps(steps: Sequence[DispatchFrame]) -> frozenset[int]:
    """Positions of the steps that are left once a stack is folded. What costs time is read of these alone: a recursion
    has tens of thousands."""
    if len(steps) <= MOST_WHOLE:
        return frozenset(range(len(steps)))
    return frozenset(
        position
        for found in fold_long(list(map(step_key, steps)))
        for position in range(found.start, found.start + min(found.length, found.period + _AROUND))
    )


def _best_at(position: int, ahead: Mapping[int, deque[tuple[int, int]]]) -> Repetition | None:
    """The repetition of most items that begins at ``position``. Drops stretches that are too short from there on."""
    best: Repetition | None = None
    for period, stretches in ahead.items():
        while stretches and stretches[0][1] - max(position, stretches[0][0]) < period * (FOLD_TIMES - 1):
            stretches.popleft()
        if stretches and stretches[0][0] <= position:
            found = Repetition(position, period, (stretches[0][1] - position) // period + 1)
            if best is None or found.length > best.length:
                best = found
    return best


def _codes(items: Sequence[Hashable]) -> Sequence[int]:
    """A small number for each item, equal for equal items: bytes where they suffice."""
    numbers: dict[Hashable, int] = {}
    codes = [numbers.setdefault(item, len(numbers)) for item in items]
    return bytes(codes) if len(numbers) <= _ONE_BYTE else codes


def _stretches(codes: Sequence[int], period: int) -> Iterator[tuple[int, int]]:
    """The ranges [start, end) in which every item equals the one that is ``period`` items later, in order."""
    differs = _differences(codes, period)
    end = 0
    while (start := differs.find(0, end)) >= 0:
        end = differs.find(1, start)
        end = len(differs) if end < 0 else end
        yield start, end


def _differences(codes: Sequence[int], period: int) -> bytes:
    """The differences: for each item 1 where it differs from the one that is ``period`` items later, else 0."""
    if not isinstance(codes, bytes):
        return bytes(map(int.__ne__, codes, codes[period:]))
    difference = int.from_bytes(codes[period:], "little") ^ int.from_bytes(codes[:-period], "little")
    return difference.to_bytes(len(codes) - period, "little").translate(_ZERO_OR_ONE)


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


class Recursion(Record):
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
    if found is None:
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
    if found.times >= REDISPATCHES and not python_frames and _redispatches(part):
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
    if found is None or found.times < REDISPATCHES:
        return (), 0
    return steps[found.start : found.start + found.period], found.times


def _redispatches(part: Sequence[DispatchFrame]) -> bool:
    return all(step.event is not None and step.event.is_redispatch for step in part) and any(
        step.keyset for step in part
    )


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
