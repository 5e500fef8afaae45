"""Launch: one call of an operator's kernel with its values, before or after."""

from __future__ import annotations

from gdbext.model.record import Record
from gdbext.model.statistics import Statistics

BEFORE, AFTER = "before_launch", "after_launch"


class LaunchTensor(Record):
    """A tensor among the values; ``name`` is that of its argument, with its number in a list ("tensors.0")."""

    name: str
    address: int
    short: str
    dtype: str
    sizes: tuple[int, ...] | None
    statistics: Statistics | None
    """None where there are no elements to read."""


class LaunchValue(Record):
    """An argument or a result; ``text`` is "" where it is not known."""

    name: str
    text: str
    tensors: tuple[LaunchTensor, ...] = ()
    type: str = ""
    """Of the schema; "" for a result."""


class Launch(Record):
    """``when`` is BEFORE or AFTER; ``call`` counts the operator's calls from 0."""

    when: str
    op: str
    overload: str
    call: int
    kernel: str
    key: str
    tid: int
    values: tuple[LaunchValue, ...]
    returned: int = 0
    """How many of the values, the last ones, are results."""

    @property
    def results(self) -> tuple[LaunchValue, ...]:
        """What the operator returned; () before that."""
        return self.values[len(self.values) - self.returned :]

    @property
    def qualified(self) -> str:
        """``aten::add.Tensor``."""
        return f"{self.op}.{self.overload}" if self.overload else self.op


class Find(Record):
    """A call that made the first number of a kind, and the calls before it, the last one last."""

    launch: Launch
    history: tuple[Launch, ...]
    is_certain: bool
    """All arguments were seen; without that, one that is unknown may have had such a number already."""
    file: str = ""
    line: int | None = None
    """Where Python called it."""
