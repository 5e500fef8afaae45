"""Makes the rows of ``dispatch-top`` from raw counts: operators, keys and kernels by the dispatcher's own tables.

What a running process dispatches, counted over some seconds: ``dispatch-top``.

What is odd about a dispatch that a profile shows: marks for rows of ``dispatch-top``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gdbext.engine.vocabulary import Section
from gdbext.errors import GdbextError
from gdbext.torch.stack import DispatchKeySet

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.vocabulary import Inline
    from gdbext.tools.probes.bpf.place_program import PythonLines
    from gdbext.tools.probes.dispatch_counter import DispatchCount
    from gdbext.torch.registry import Dispatcher, Operator


class DispatchSubject(NamedTuple):
    """What dispatches are to: what is None is not told apart by this grouping, or is not known."""

    op: str | None
    overload: str | None
    event: str | None
    keyset: DispatchKeySet | None
    key: str | None
    kernel: str | None

    @property
    def qualified(self) -> str:
        """The operator with its overload: ``aten::add.Tensor``; "" where it is not known."""
        return f"{self.op}.{self.overload}" if self.op and self.overload else self.op or ""


@dataclass(frozen=True)
class TopRow:
    """One line."""

    subject: Inline[DispatchSubject]
    tid: int | None
    thread: str | None
    count: int
    rate: float
    """Number of dispatches a second."""
    mark: str = ""
    """A word on what is odd about it ("falls through", "no kernel", "boxed fallback"), else ""."""
    line: str | None = None
    """``file:line (function)`` of the innermost Python frame; null where no Python made it, or it was not asked for."""


@dataclass(frozen=True)
class TopSection(Section):
    """The rows, most dispatches first."""

    name: ClassVar[str] = "top"
    seconds: float
    engine: str
    total: int
    lost: int
    """Dispatches that were seen and not counted: too many combinations."""
    places: int
    """Number of probes that were placed."""
    rows: tuple[TopRow, ...]
    more: int = 0
    """Rows that are left out."""
    page: str | None = None
    """The file that --html names."""
    unseen: int = 0
    """Functions that look operators up in a way that is not recognised: what they dispatch is not counted."""
    unseen_in: tuple[str, ...] = ()
    """The libraries that these are in, with how many in each."""


ACCELERATORS = frozenset(("CUDA", "HIP", "XPU", "MPS", "HPU", "XLA", "MTIA", "IPU", "VE", "Lazy", "PrivateUse1"))
"""Backend components (c10/core/DispatchKey.h) of devices other than the processor."""
_MANY_REDISPATCHES = 8
"""A call passes Autograd, ADInplaceOrView and a backend, and few keys more."""
_REASONS = {"math kernel": "decomposes", "backend fallback": "boxed fallback"}
"""PyTorch's word for how a table entry was chosen → what that means for speed."""


class Anomalies:
    """Judges by all that was counted."""

    def __init__(self, session: Session, counts: Iterable[DispatchCount]) -> None:
        self._session = session
        calls: dict[int, int] = {}
        redispatches: dict[int, int] = {}
        self._on_accelerator = 0
        for count in counts:
            into = redispatches if count.event.is_redispatch else calls
            into[count.entry] = into.get(count.entry, 0) + count.times
            self._on_accelerator += count.times * (1 if self._backends(count.keyset) & ACCELERATORS else -1)
        # Without a call it was called before: one call at least.
        self._repeated = {
            entry: times / calls.get(entry, 1)
            for entry, times in redispatches.items()
            if times > _MANY_REDISPATCHES * calls.get(entry, 1)
        }

    def _backends(self, keyset: int) -> frozenset[str]:
        try:
            return frozenset(self._session.dispatcher.keys.decode(keyset))
        except GdbextError:
            return frozenset()

    def mark(self, operator: Operator, event: str, keyset: int) -> str:
        """The mark in a few words; "" for what is as usual."""
        dispatcher = self._session.dispatcher
        try:
            index, kernel = operator.kernel_for(keyset)
            if not kernel.valid:
                return "no kernel"
            if dispatcher.kernels.fallthrough(kernel):
                return "falls through"
            found = _REASONS.get(self._session.tables.entry(operator, index).reason, "")
        except GdbextError:
            return ""
        if event.startswith("redispatch") and operator.address in self._repeated:
            return f"redispatched {self._repeated[operator.address]:.0f} times a call"
        backends = self._backends(keyset)
        if not found and self._on_accelerator > 0 and "CPU" in backends and not backends & ACCELERATORS:
            return "on the CPU"
        return found


GROUPINGS = ("op", "key", "kernel", "thread", "line")
ORDERS = ("count", "op", "key", "kernel", "thread", "line")


class RowSelection(NamedTuple):
    """The choice of rows: grouped ``by`` one of GROUPINGS, ordered by one of ORDERS, ``limit`` of them."""

    by: str = "op"
    sort: str = "count"
    limit: int = 40


class Dispatched(NamedTuple):
    """The subject of one count; equal ones are one row. ``operator`` is an OperatorEntry."""

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
        """Entries that are no operator."""

    def rows(
        self, counts: Sequence[DispatchCount], select: RowSelection, seconds: float, names: Mapping[int, str]
    ) -> tuple[list[TopRow], int]:
        """The rows that are asked for, and how many more there are. Raises MemoryFault, BadData."""
        sums: dict[Dispatched, int] = {}
        for count in counts:
            what = _grouped(self.dispatched(count), select.by)
            sums[what] = sums.get(what, 0) + count.times
        odd = Anomalies(self._session, counts)
        found = [self._row(what, count, seconds, names) for what, count in sums.items()]
        ordered = sorted(zip(found, sums), key=lambda each: _order(each[0], select.sort))
        shown = [self._marked(row, what, odd) for row, what in ordered[: select.limit]]
        return shown, max(0, len(ordered) - select.limit)

    def learn(self, counts: Sequence[DispatchCount]) -> None:
        """Find out what they are about, for when the process is gone."""
        for count in counts:
            with contextlib.suppress(GdbextError):
                self.dispatched(count)

    def dispatched(self, count: DispatchCount) -> Dispatched:
        """The subject of a count. Raises MemoryFault, BadData."""
        operator = self._operator(count.entry)
        line = self._lines.text(count.code, count.instruction) if self._lines else None
        known: tuple[int | None, str | None, str | None] = (count.keyset, None, None)
        if operator:
            known = self._known.get((count.entry, count.keyset)) or self._kernel(operator, count.keyset)
            self._known[count.entry, count.keyset] = known
        return Dispatched(count.entry, count.event.value, *known, count.tid, line)

    def _operator(self, address: int) -> Operator | None:
        """The one whose OperatorEntry is there, also if it was registered since the last report."""
        found = self._session.dispatcher.by_def(address)
        if not found and address not in self._unknown:
            self._session = self._session.reopened(self._session.target)
            found = self._session.dispatcher.by_def(address)
            if not found:
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

    def subject(self, what: Dispatched) -> DispatchSubject:
        """The subject in words."""
        dispatcher = self._session.dispatcher
        operator = dispatcher.by_def(what.operator) if what.operator is not None else None
        keyset = _decoded(dispatcher, what.keyset)
        name, overload = (operator.name, operator.overload) if operator else (None, None)
        return DispatchSubject(name, overload, what.event, keyset, what.key, what.kernel)

    def _row(self, what: Dispatched, count: int, seconds: float, names: Mapping[int, str]) -> TopRow:
        thread = names.get(what.tid) if what.tid else None
        rate = round(count / seconds, 1) if seconds > 0 else 0.0
        return TopRow(self.subject(what), what.tid, thread, count, rate, "", what.line)

    def _marked(self, row: TopRow, what: Dispatched, odd: Anomalies) -> TopRow:
        if what.operator is None:
            return row
        operator = self._session.dispatcher.by_def(what.operator)
        if not operator:
            return replace(row, mark="operator not known")
        if what.event is None:
            return row
        if what.keyset is None:
            return replace(row, mark="keyset not known")
        return replace(row, mark=odd.mark(operator, what.event, what.keyset))


def _decoded(dispatcher: Dispatcher, keyset: int | None) -> DispatchKeySet | None:
    return None if keyset is None else DispatchKeySet(keyset, dispatcher.keys.decode(keyset))


def _grouped(what: Dispatched, by: str) -> Dispatched:
    """The subject without what this grouping does not tell apart."""
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
    """The order by that column, then the most dispatches first."""
    subject = row.subject
    texts = {"op": subject.op, "key": subject.key, "kernel": subject.kernel, "thread": row.thread, "line": row.line}
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
