"""Compares the arguments of the levels of a recursion: one that ends gets other ones.

Arguments of operators are compared as far as they can be read; where Python stands in between, also the objects that
its functions were called with. Only some levels are looked at, the innermost ones and others all over the stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.engine.repetitions import longest
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.py_stack import PyStack
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
    from gdbext.torch.stack import DispatchFrame

_NEIGHBOURS = 6
"""Innermost periods that are compared: a number that counts down differs from one to the next."""
_SPREAD = 6
"""Further periods that are compared."""
_MOST_ARGUMENTS = 32
_MOST_FRAMES = 4000
"""Python frames whose arguments are compared."""
_PYTHON_PERIOD = 200
_OF_TORCH = ("/torch/", "<frozen ")
"""Parts of the files of functions that pass arguments on."""


class RepeatedArguments:
    """Compares the levels of one thread's recursion."""

    def __init__(self, session: Session, snapshot: ThreadSnapshot) -> None:
        self._session = session
        self._snapshot = snapshot

    def __call__(self, positions: Sequence[int], period: int) -> bool:
        """The steps at ``positions``, so many in a period, have the same arguments in each: proven."""
        try:
            steps = self._of_operators(positions, period)
        except GdbextError:
            return False
        if steps is False:
            return False
        first, last = (self._snapshot.dispatch[at].level for at in (positions[0], positions[-1]))
        if not any(first <= frame.level <= last for frame in self._snapshot.python):
            return steps is True
        return self._of_python(len(positions) // period)

    # --- operators -------------------------------------------------------------------------------

    def _of_operators(self, positions: Sequence[int], period: int) -> bool | None:
        """True: equal, and each operator's were read; False: some differ; None: not all could be read."""
        times = len(positions) // period
        chosen = sorted({*range(min(_NEIGHBOURS, times)), *range(0, times, max(1, times // _SPREAD))})
        wanted = {positions[turn * period + place] for turn in chosen for place in range(period)}
        frames = ArgumentReporter(self._session).at(self._snapshot.stack, wanted)
        read: dict[str, bool] = {}
        for place in range(period):
            column = [frames[positions[turn * period + place]] for turn in chosen]
            if _differ(column):
                return False
            operator = column[0].qualified
            read[operator] = read.get(operator, False) or all(map(_is_known, column))
        return True if all(read.values()) else None

    # --- Python ----------------------------------------------------------------------------------

    def _of_python(self, times: int) -> bool:
        """The same functions were called with the same objects, over and over."""
        calls = list(_calls(self._session.python_threads.frames(self._snapshot.tid).innermost(_MOST_FRAMES)))
        found = longest(calls, _PYTHON_PERIOD)
        if not found or found.times * 2 < times:
            return False
        repeated = calls[found.start : found.start + found.period]
        return any(objects for _, objects in repeated)


def _differ(column: Sequence[DispatchFrame]) -> bool:
    """True if what is known of an argument is not the same everywhere."""
    seen: dict[str, tuple[object, ...]] = {}
    for step in column:
        for argument in step.arguments:
            if argument.text:
                value = (argument.text, tuple(tensor.address for tensor in argument.tensors))
                if seen.setdefault(argument.name, value) != value:
                    return True
    return False


def _is_known(step: DispatchFrame) -> bool:
    return bool(step.arguments) and all(argument.text for argument in step.arguments)


def _calls(stack: PyStack) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(code, objects that it was called with) of each frame; nothing of those that only pass arguments on."""
    for frame in stack:
        passes_on = any(part in frame.file for part in _OF_TORCH)
        yield frame.code, () if passes_on else stack.arguments(frame, _MOST_ARGUMENTS)
