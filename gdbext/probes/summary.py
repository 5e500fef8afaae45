"""From raw counts to the rows of ``dispatch-top``: operators, keys and kernels by the dispatcher's own tables."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.model.dispatch.dispatch_frame import DispatchKeySet
from gdbext.model.record import Record
from gdbext.model.sections.top_section import TopRow
from gdbext.probes.odd_dispatches import OddDispatches

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.probes.dispatch_counter import DispatchCount
    from gdbext.probes.python_lines import PythonLines
    from gdbext.torch.registry.operators import Dispatcher, Operator

GROUPINGS = ("op", "key", "kernel", "thread", "line")
ORDERS = ("count", "op", "key", "kernel", "thread", "line")


class Selection(Record):
    """Which rows: grouped ``by`` one of GROUPINGS, ordered by one of ORDERS, ``limit`` of them."""

    by: str = "op"
    sort: str = "count"
    limit: int = 40


class Dispatched(Record):
    """What one count is about; equal ones are one row. ``operator`` is an OperatorEntry."""

    operator: int | None = None
    event: str | None = None
    keyset: int | None = None
    key: str | None = None
    kernel: str | None = None
    tid: int | None = None
    line: str | None = None


class Summary:
    """Sums up what was counted in one process."""

    def __init__(self, session: Session, lines: PythonLines | None = None) -> None:
        self._session = session
        self._lines = lines
        self._known: dict[tuple[int, int], tuple[int | None, str | None, str | None]] = {}
        self._unknown: set[int] = set()
        """What is no operator."""

    def rows(
        self, counts: Sequence[DispatchCount], select: Selection, seconds: float, names: Mapping[int, str]
    ) -> tuple[list[TopRow], int]:
        """The rows that are asked for, and how many more there are. Raises MemoryFault, BadData."""
        sums: dict[Dispatched, int] = {}
        for count in counts:
            what = _grouped(self.dispatched(count), select.by)
            sums[what] = sums.get(what, 0) + count.times
        odd = OddDispatches(self._session, counts)
        found = [self.row(what, count, seconds, names) for what, count in sums.items()]
        ordered = sorted(zip(found, sums), key=lambda each: _order(each[0], select.sort))
        shown = [self._marked(row, what, odd) for row, what in ordered[: select.limit]]
        return shown, max(0, len(ordered) - select.limit)

    def learn(self, counts: Sequence[DispatchCount]) -> None:
        """Find out what they are about, for when the process is gone."""
        for count in counts:
            with contextlib.suppress(GdbextError):
                self.dispatched(count)

    def dispatched(self, count: DispatchCount) -> Dispatched:
        """What a count is about. Raises MemoryFault, BadData."""
        operator = self._operator(count.entry)
        line = self._lines.text(count.code, count.instruction) if self._lines is not None else None
        known: tuple[int | None, str | None, str | None] = (count.keyset, None, None)
        if operator is not None:
            known = self._known.get((count.entry, count.keyset)) or self._kernel(operator, count.keyset)
            self._known[count.entry, count.keyset] = known
        return Dispatched(count.entry, count.event.value, *known, count.tid, line)

    def _operator(self, address: int) -> Operator | None:
        """The one whose OperatorEntry is there, also if it was registered since the last report."""
        found = self._session.dispatcher.by_def(address)
        if found is None and address not in self._unknown:
            self._session = self._session.reopened(self._session.target)
            found = self._session.dispatcher.by_def(address)
            if found is None:
                self._unknown.add(address)
        return found

    def _kernel(self, operator: Operator, keyset: int) -> tuple[int | None, str | None, str | None]:
        """(keyset, key, kernel). A keyset that no call can have is dropped: it was something else."""
        keys, kernels = operator.dispatcher.keys, operator.dispatcher.kernels
        try:
            if keys.stray(keyset):
                return None, None, None
            key = keys.highest_key(keyset)
            kernel = operator.kernel_for(keyset)[1]
            return keyset, key, kernels.name(kernel, key, operator.name).function or None
        except GdbextError:
            return None, None, None

    def row(self, what: Dispatched, count: int, seconds: float, names: Mapping[int, str]) -> TopRow:
        """In words."""
        dispatcher = self._session.dispatcher
        operator = dispatcher.by_def(what.operator) if what.operator is not None else None
        keyset = _decoded(dispatcher, what.keyset)
        thread = names.get(what.tid) if what.tid is not None else None
        rate = round(count / seconds, 1) if seconds > 0 else 0.0
        name, overload = (operator.name, operator.overload) if operator is not None else (None, None)
        return TopRow(
            name, overload, what.event, keyset, what.key, what.kernel, what.tid, thread, count, rate, "", what.line
        )

    def _marked(self, row: TopRow, what: Dispatched, odd: OddDispatches) -> TopRow:
        if what.operator is None:
            return row
        operator = self._session.dispatcher.by_def(what.operator)
        if operator is None:
            return replace(row, mark="operator not known")
        if what.event is None:
            return row
        if what.keyset is None:
            return replace(row, mark="keyset not known")
        return replace(row, mark=odd.mark(operator, what.event, what.keyset))


def _decoded(dispatcher: Dispatcher, keyset: int | None) -> DispatchKeySet | None:
    return None if keyset is None else DispatchKeySet(keyset, dispatcher.keys.decode(keyset))


def _grouped(what: Dispatched, by: str) -> Dispatched:
    """Without what this grouping does not tell apart."""
    if by == "thread":
        return Dispatched(tid=what.tid)
    if by == "key":
        return Dispatched(key=what.key)
    if by == "kernel":
        return what._replace(event=None, keyset=None, tid=None, line=None)
    if by == "line":
        return Dispatched(operator=what.operator, line=what.line)
    return what._replace(tid=None, line=None)


def _order(row: TopRow, sort: str) -> tuple[str, int, str]:
    """By that column, then the most dispatches first."""
    texts = {"op": row.op, "key": row.key, "kernel": row.kernel, "thread": row.thread, "line": row.line}
    return texts.get(sort) or "", -row.count, str(row)


def chosen(dispatcher: Dispatcher, patterns: Sequence[str]) -> list[Operator]:
    """The operators that the user named; none without a name. Raises UsageError for an unknown one."""
    wanted: dict[int, Operator] = {}
    for pattern in patterns:
        found = dispatcher.find(pattern)
        if not found:
            raise dispatcher.unknown(pattern)
        wanted.update((operator.address, operator) for operator in found)
    return list(wanted.values())
