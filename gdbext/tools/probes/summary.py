"""The rows of ``dispatch-top``, made from raw counts: operators, keys and kernels by the dispatcher's own tables."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Optional

from gdbext.engine.vocabulary import Section
from gdbext.errors import GdbextError
from gdbext.torch.stack import DispatchKeySet

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.vocabulary import Inline
    from gdbext.tools.probes.bpf.place_program import PythonLines
    from gdbext.tools.probes.dispatch_counter import DispatchCount
    from gdbext.torch.registry import Dispatcher, Operator

    _KeysetKernel = tuple[Optional[int], Optional[str], Optional[str]]
    """(keyset, its highest key, the kernel's function)."""


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
    """Functions that look operators up in a way that is not recognized: what they dispatch is not counted."""
    unseen_in: tuple[str, ...] = ()
    """The libraries that these are in, with how many in each."""


ACCELERATORS = frozenset(("CUDA", "HIP", "XPU", "MPS", "HPU", "XLA", "MTIA", "IPU", "VE", "Lazy", "PrivateUse1"))
"""Backend components (c10/core/DispatchKey.h) of devices other than the CPU."""
_MANY_REDISPATCHES = 8
"""A call passes Autograd, ADInplaceOrView and a backend, and few keys more."""
_REASONS = {"math kernel": "decomposes", "backend fallback": "boxed fallback"}
"""PyTorch's word for how a table entry was chosen → what that means for speed."""


class Anomalies:
    """Marks for rows that are unusual, judged by all counts."""

    def __init__(self, session: Session, counts: Iterable[DispatchCount]) -> None:
        self._session = session
        calls: Counter[int] = Counter()
        redispatches: Counter[int] = Counter()
        self._on_accelerator = 0
        for count in counts:
            (redispatches if count.event.is_redispatch else calls)[count.entry] += count.times
            self._on_accelerator += count.times * (1 if self._backends(count.keyset) & ACCELERATORS else -1)
        # Without a call it was called before: one call at least.
        ratios = {entry: times / (calls[entry] or 1) for entry, times in redispatches.items()}
        self._repeated = {entry: ratio for entry, ratio in ratios.items() if ratio > _MANY_REDISPATCHES}

    def _backends(self, keyset: int) -> frozenset[str]:
        try:
            return frozenset(self._session.dispatcher.keys.decode(keyset))
        except GdbextError:
            return frozenset()

    def mark(self, operator: Operator, event: str, keyset: int) -> str:
        """The mark in a few words; "" for what is as usual."""
        try:
            index, kernel = operator.kernel_for(keyset)
            if not kernel.valid:
                return "no kernel"
            if self._session.dispatcher.kernels.fallthrough(kernel):
                return "falls through"
            reason = _REASONS.get(self._session.tables.entry(operator, index).reason, "")
        except GdbextError:
            return ""
        if event.startswith("redispatch") and operator.address in self._repeated:
            return f"redispatched {self._repeated[operator.address]:.0f} times a call"
        backends = self._backends(keyset)
        if not reason and self._on_accelerator > 0 and "CPU" in backends and not backends & ACCELERATORS:
            return "on the CPU"
        return reason


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
        self._kernels: dict[tuple[int, int], _KeysetKernel] = {}
        """(OperatorEntry, keyset) → what is known of it."""
        self._no_operators: set[int] = set()
        """Entries that are no operator."""

    def rows(
        self, counts: Sequence[DispatchCount], select: RowSelection, seconds: float, names: Mapping[int, str]
    ) -> tuple[list[TopRow], int]:
        """(the rows that are asked for, how many more there are). ``names``: those of threads. Raises MemoryFault,
        BadData."""
        sums: Counter[Dispatched] = Counter()
        for count in counts:
            what = self.dispatched(count)
            if select.by == "thread":
                what = Dispatched(tid=what.tid)
            elif select.by == "key":
                what = Dispatched(key=what.key)
            elif select.by == "kernel":
                what = what._replace(event=None, keyset=None, tid=None, line=None)
            elif select.by == "line":
                what = Dispatched(operator=what.operator, line=what.line)
            else:
                what = what._replace(tid=None, line=None)
            sums[what] += count.times

        def order(item: tuple[TopRow, Dispatched]) -> tuple[str, int, str]:
            row, subject = item[0], item[0].subject
            columns = {"op": subject.op, "key": subject.key, "kernel": subject.kernel, "thread": row.thread}
            return {**columns, "line": row.line}.get(select.sort) or "", -row.count, str(row)

        rows = []
        for what, times in sums.items():
            thread = names.get(what.tid) if what.tid else None
            rate = round(times / seconds, 1) if seconds > 0 else 0.0
            rows.append((TopRow(self.subject(what), what.tid, thread, times, rate, "", what.line), what))
        rows.sort(key=order)
        anomalies = Anomalies(self._session, counts)
        marked = [replace(row, mark=self._mark(what, anomalies)) for row, what in rows[: select.limit]]
        return marked, max(0, len(rows) - select.limit)

    def _mark(self, what: Dispatched, anomalies: Anomalies) -> str:
        """The mark of a row; "" where this grouping does not tell operators or events apart."""
        if what.operator is None:
            return ""
        operator = self._session.dispatcher.by_def(what.operator)
        if not operator:
            return "operator not known"
        if what.event is None:
            return ""
        return "keyset not known" if what.keyset is None else anomalies.mark(operator, what.event, what.keyset)

    def learn(self, counts: Sequence[DispatchCount]) -> None:
        """Read the operators and kernels of the counts, for when the process has ended."""
        for count in counts:
            with contextlib.suppress(GdbextError):
                self.dispatched(count)

    def dispatched(self, count: DispatchCount) -> Dispatched:
        """The subject of a count. Raises MemoryFault, BadData."""
        operator = self._session.dispatcher.by_def(count.entry)
        if not operator and count.entry not in self._no_operators:  # it may have been registered since
            self._session = self._session.session_after_stop(self._session.target)
            operator = self._session.dispatcher.by_def(count.entry)
            if not operator:
                self._no_operators.add(count.entry)
        line = self._lines.text(count.code, count.instruction) if self._lines else None
        kernel: _KeysetKernel = (count.keyset, None, None)
        if operator:
            key = count.entry, count.keyset
            kernel = self._kernels[key] = self._kernels.get(key) or _keyset_kernel(operator, count.keyset)
        return Dispatched(count.entry, count.event.value, *kernel, count.tid, line)

    def subject(self, what: Dispatched) -> DispatchSubject:
        """The subject in words."""
        dispatcher = self._session.dispatcher
        operator = dispatcher.by_def(what.operator) if what.operator is not None else None
        name, overload = (operator.name, operator.overload) if operator else (None, None)
        bits = what.keyset
        keyset = None if bits is None else DispatchKeySet(bits, dispatcher.keys.decode(bits))
        return DispatchSubject(name, overload, what.event, keyset, what.key, what.kernel)


def _keyset_kernel(operator: Operator, keyset: int) -> _KeysetKernel:
    """The kernel for a keyset. A keyset that no call can have is dropped: it was something else."""
    keys = operator.dispatcher.keys
    try:
        if keys.stray(keyset):
            return None, None, None
        key = keys.highest_key(keyset)
        kernel = operator.kernel_for(keyset)[1]
        return keyset, key, operator.dispatcher.kernels.name(kernel, key, operator.name).function or None
    except GdbextError:
        return None, None, None


def named_operators(dispatcher: Dispatcher, patterns: Sequence[str]) -> list[Operator]:
    """The operators that the user named; none without a name. Raises UsageError for an unknown one."""
    wanted: dict[int, Operator] = {}
    for pattern in patterns:
        operators = dispatcher.find(pattern)
        if not operators:
            raise dispatcher.unknown(pattern)
        wanted.update((operator.address, operator) for operator in operators)
    return list(wanted.values())
