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
    """The operator, event, key and kernel of dispatches; None: not distinguished by this grouping, or not known."""

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
    """An anomaly in a few words ("falls through", "no kernel", "boxed fallback"), else ""."""
    line: str | None = None
    """``file:line (function)`` of the innermost Python frame; null for a dispatch without Python, or not --by line."""


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
    """Number of probes."""
    rows: tuple[TopRow, ...]
    more: int = 0
    """Number of rows that are left out."""
    page: str | None = None
    """The file that --html names."""
    unseen: int = 0
    """Number of functions that look operators up in an unrecognized way: their dispatches are not counted."""
    unseen_in: tuple[str, ...] = ()
    """The libraries of these functions, with the number in each."""


ACCELERATORS = frozenset(("CUDA", "HIP", "XPU", "MPS", "HPU", "XLA", "MTIA", "IPU", "VE", "Lazy", "PrivateUse1"))
"""Backend components (c10/core/DispatchKey.h) of devices other than the CPU."""
_REASONS = {"math kernel": "decomposes", "backend fallback": "boxed fallback"}
"""PyTorch's word for how a table entry was chosen → what that means for speed."""


class Anomalies:
    """Marks for rows that are unusual, judged by all counts."""

    def __init__(self, session: Session, counts: Iterable[DispatchCount]) -> None:
        """Compute what is usual from ``counts``: all dispatches of the report."""
        self._session = session
        calls: Counter[int] = Counter()
        redispatches: Counter[int] = Counter()
        self._on_accelerator = 0  # number of dispatches with an accelerator's key minus number of the others
        for count in counts:
            (redispatches if count.event.is_redispatch else calls)[count.entry] += count.times
            self._on_accelerator += count.times * (1 if self._backends(count.keyset) & ACCELERATORS else -1)
        # An operator without a call was called before: one call at least.
        ratios = {entry: times / (calls[entry] or 1) for entry, times in redispatches.items()}
        # A call passes Autograd, ADInplaceOrView and a backend, and few keys more.
        self._repeated = {entry: ratio for entry, ratio in ratios.items() if ratio > 8}
        """OperatorEntry → redispatches per call, if there are unusually many."""

    def _backends(self, keyset: int) -> frozenset[str]:
        """The names of all keys of the keyset, backends among them; none if it cannot be decoded."""
        try:
            return frozenset(self._session.dispatcher.keys.decode(keyset))
        except GdbextError:
            return frozenset()

    def mark(self, operator: Operator, event: str, keyset: int) -> str:
        """The anomaly of an operator's dispatches in a few words; "" without one."""
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


GROUPINGS = {
    "op": ("operator", "event", "keyset", "key", "kernel"),
    "key": ("key",),
    "kernel": ("operator", "key", "kernel"),
    "thread": ("tid",),
    "line": ("operator", "line"),
}
"""Value of --by → the fields of Dispatched by which its rows differ."""
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
    """Turns the counts of one process into rows."""

    def __init__(self, session: Session, lines: PythonLines | None = None) -> None:
        """``lines``: with --by line, the reader of Python lines."""
        self._session = session
        self._lines = lines
        self._kernels: dict[tuple[int, int], _KeysetKernel] = {}  # (OperatorEntry, keyset) → its kernel
        self._no_operators: set[int] = set()  # addresses that are not those of an OperatorEntry

    def rows(
        self, counts: Sequence[DispatchCount], select: RowSelection, seconds: float, names: Mapping[int, str]
    ) -> tuple[list[TopRow], int]:
        """(the selected rows, number of further ones). ``names``: thread id → name. Raises MemoryFault, BadData."""
        sums: Counter[Dispatched] = Counter()
        for count in counts:
            dispatched = self.dispatched(count)
            fields = GROUPINGS[select.by]
            sums[Dispatched(**{name: value for name, value in dispatched._asdict().items() if name in fields})] += (
                count.times
            )

        def order(item: tuple[TopRow, Dispatched]) -> tuple[str, int, str]:
            """The sort key of a row: the column that ``select`` names, then the larger count."""
            row, subject = item[0], item[0].subject
            columns = {"op": subject.op, "key": subject.key, "kernel": subject.kernel}
            columns.update(thread=row.thread, line=row.line)
            return columns.get(select.sort) or "", -row.count, str(row)

        rows = []
        for dispatched, times in sums.items():
            thread = names.get(dispatched.tid) if dispatched.tid else None
            rate = round(times / seconds, 1) if seconds > 0 else 0.0
            row = TopRow(self.subject(dispatched), dispatched.tid, thread, times, rate, "", dispatched.line)
            rows.append((row, dispatched))
        rows.sort(key=order)
        anomalies = Anomalies(self._session, counts)
        marked = [replace(row, mark=self._mark(dispatched, anomalies)) for row, dispatched in rows[: select.limit]]
        return marked, max(0, len(rows) - select.limit)

    def _mark(self, dispatched: Dispatched, anomalies: Anomalies) -> str:
        """The mark of a row; "" where this grouping does not distinguish operators or events."""
        if dispatched.operator is None:
            return ""
        operator = self._session.dispatcher.by_def(dispatched.operator)
        if not operator:
            return "operator not known"
        if dispatched.event is None:
            return ""
        if dispatched.keyset is None:
            return "keyset not known"
        return anomalies.mark(operator, dispatched.event, dispatched.keyset)

    def learn(self, counts: Sequence[DispatchCount]) -> None:
        """Read the operators and kernels of the counts now: they cannot be read once the process has ended."""
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

    def subject(self, dispatched: Dispatched) -> DispatchSubject:
        """What ``dispatched`` names by numbers, with the names of the operator and the keys."""
        dispatcher, bits = self._session.dispatcher, dispatched.keyset
        operator = dispatcher.by_def(dispatched.operator) if dispatched.operator is not None else None
        name, overload = (operator.name, operator.overload) if operator else (None, None)
        keyset = None if bits is None else DispatchKeySet(bits, dispatcher.keys.decode(bits))
        return DispatchSubject(name, overload, dispatched.event, keyset, dispatched.key, dispatched.kernel)


def _keyset_kernel(operator: Operator, keyset: int) -> _KeysetKernel:
    """(keyset, its highest key, the kernel's function); all None for bits that no call's keyset can have."""
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
