"""``dispatch-values nan`` and ``inf``: the first operator whose result has such a number while no argument had one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from gdbext.model.dispatch.launch import BEFORE, Find, Launch, LaunchTensor, LaunchValue
from gdbext.torch.compile.inductor_source import is_only_written

if TYPE_CHECKING:
    from gdbext.inspection.tensors.tensor_report import TensorReporter
    from gdbext.model.statistics import Statistics

HISTORY = 20
"""Operators before the find that are shown."""

_UNINITIALIZED = ("empty", "new_empty", "_empty", "resize", "set_")
"""How the names of operators begin whose results are memory as it was (native_functions.yaml, 2.13.0)."""


class HasStatistics(Protocol):
    """A tensor of which statistics are known, or not (None)."""

    @property
    def statistics(self) -> Statistics | None:
        """Of its elements."""


IsBad = Callable[["HasStatistics"], bool]


def has_nan(tensor: HasStatistics) -> bool:
    """Any of its numbers is a NaN."""
    return tensor.statistics is not None and tensor.statistics.nan > 0


def has_infinity(tensor: HasStatistics) -> bool:
    """Any of its numbers is infinite, or a NaN."""
    return tensor.statistics is not None and tensor.statistics.inf + tensor.statistics.nan > 0


def above(limit: float) -> IsBad:
    """Any of its numbers is further from zero than ``limit``."""

    def is_above(tensor: HasStatistics) -> bool:
        found = tensor.statistics
        if found is None or found.minimum is None or found.maximum is None:
            return False
        return max(abs(found.minimum), abs(found.maximum)) > limit or math.isinf(found.maximum)

    return is_above


class FirstBad:
    """Receives launches before and after; ends the run, or goes on, where it has found what is looked for."""

    def __init__(self, is_bad: IsBad, found: Callable[[Find], None], stays: bool) -> None:
        """``found`` is told about each find; ``stays``: the process stays stopped at the first one."""
        self._is_bad = is_bad
        self._found = found
        self._stays = stays
        self._before: dict[tuple[int, str, int], tuple[bool, bool]] = {}
        self._history: deque[Launch] = deque(maxlen=HISTORY)
        self.count = 0

    def launch(self, launch: Launch, reporter: TensorReporter) -> bool:
        """True at a find, where the process is to stay stopped."""
        del reporter
        call = launch.tid, launch.qualified, launch.call
        if launch.when == BEFORE:
            given = [value for value in launch.values if not _is_written_over(value)]
            tensors = [tensor for value in given for tensor in value.tensors]
            known = all(value.text for value in given if "Tensor" in value.type or "*" in value.type)
            self._before[call] = any(map(self._is_bad, tensors)), known
            return False
        was_bad, known = self._before.pop(call, (False, False))
        is_bad = any(map(self._is_bad, _results(launch)))
        if not was_bad and is_bad and not launch.op.rpartition("::")[2].startswith(_UNINITIALIZED):
            self.count += 1
            self._found(Find(launch, tuple(self._history), known))
            return self._stays
        self._history.append(launch)
        return False


def _is_written_over(value: LaunchValue) -> bool:
    """What is in there before the call does not matter."""
    return value.name == "out" or is_only_written(value.type)


def _results(launch: Launch) -> Iterator[LaunchTensor]:
    """What it returned, and what it was given: it may have written to that."""
    for value in launch.values:
        yield from value.tensors
