"""From raw counts to the rows of ``dispatch-top``: operators, keys and kernels by the dispatcher's own tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gdbext.errors import BadData, GdbextError
from gdbext.model.dispatch.dispatch_frame import DispatchKeySet
from gdbext.model.sections.top_section import TopRow
from gdbext.probes.dispatch_counter import DispatchCount
from gdbext.torch.registry.operators import Dispatcher, Operator

GROUPINGS = ("op", "key", "kernel", "thread")


class _Dispatched(NamedTuple):
    """What one count is about; equal ones are one row."""

    op: str | None
    overload: str | None
    event: str | None
    keyset: int | None
    key: str | None
    kernel: str | None
    tid: int | None
    mark: str


def rows(
    counts: Iterable[DispatchCount], dispatcher: Dispatcher, by: str, seconds: float, names: Mapping[int, str]
) -> list[TopRow]:
    """The counts summed up by one of GROUPINGS, most dispatches first. Raises MemoryFault, BadData."""
    sums: dict[_Dispatched, int] = {}
    for count in counts:
        what = _grouped(_dispatched(count, dispatcher), by)
        sums[what] = sums.get(what, 0) + count.times
    ordered = sorted(sums.items(), key=lambda item: (-item[1], str(item[0])))
    return [_row(what, count, seconds, dispatcher, names) for what, count in ordered]


def _dispatched(count: DispatchCount, dispatcher: Dispatcher) -> _Dispatched:
    operator = dispatcher.by_def(count.entry)
    if operator is None:
        return _Dispatched(None, None, count.event.value, count.keyset, None, None, count.tid, "operator not known")
    keyset, key, kernel, mark = _kernel(operator, count.keyset)
    return _Dispatched(operator.name, operator.overload, count.event.value, keyset, key, kernel, count.tid, mark)


def _kernel(operator: Operator, keyset: int) -> tuple[int | None, str | None, str | None, str]:
    """(keyset, key, kernel, what is odd). A keyset that no call can have is dropped: it was something else."""
    keys, kernels = operator.dispatcher.keys, operator.dispatcher.kernels
    try:
        if keys.stray(keyset):
            return None, None, None, "keyset not known"
        key = keys.highest_key(keyset)
        kernel = operator.kernel_for(keyset)[1]
        name = kernels.name(kernel, key, operator.name).function or None
    except (BadData, GdbextError):
        return None, None, None, "keyset not known"
    mark = "no kernel" if not kernel.valid else "falls through" if kernels.fallthrough(kernel) else ""
    return keyset, key, name, mark


def _grouped(what: _Dispatched, by: str) -> _Dispatched:
    """Without what this grouping does not tell apart."""
    if by == "thread":
        return _Dispatched(None, None, None, None, None, None, what.tid, "")
    if by == "key":
        return _Dispatched(None, None, None, None, what.key, None, None, "")
    if by == "kernel":
        return what._replace(event=None, keyset=None, tid=None)
    return what._replace(tid=None)


def _row(
    what: _Dispatched, count: int, seconds: float, dispatcher: Dispatcher, names: Mapping[int, str]
) -> TopRow:
    keyset = None
    if what.keyset is not None:
        keyset = DispatchKeySet(what.keyset, dispatcher.keys.decode(what.keyset))
    thread = names.get(what.tid) if what.tid is not None else None
    rate = round(count / seconds, 1) if seconds > 0 else 0.0
    return TopRow(
        what.op, what.overload, what.event, keyset, what.key, what.kernel, what.tid, thread, count, rate, what.mark
    )


def chosen(dispatcher: Dispatcher, patterns: Sequence[str]) -> list[Operator]:
    """The operators that the user named; none without a name. Raises UsageError for an unknown one."""
    wanted: dict[int, Operator] = {}
    for pattern in patterns:
        found = dispatcher.find(pattern)
        if not found:
            raise dispatcher.unknown(pattern)
        wanted.update((operator.address, operator) for operator in found)
    return list(wanted.values())
