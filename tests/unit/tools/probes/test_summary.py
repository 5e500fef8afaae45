"""Rows of dispatch-top: operators that are registered while it counts are known, and what is none is asked for once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gdbext.tools.probes import top_view
from gdbext.tools.probes.dispatch_counter import DispatchCount
from gdbext.tools.probes.summary import Summary
from gdbext.torch.stack import DispatchEvent


class FakeSession:
    """Each session after the first knows one operator more."""

    def __init__(self, known: set[int]) -> None:
        keys = SimpleNamespace(stray=lambda keyset: bool(keyset))
        operator = SimpleNamespace(dispatcher=SimpleNamespace(keys=keys, kernels=None))
        self.dispatcher: Any = SimpleNamespace(by_def=lambda address: operator if address in known else None)
        self.target = None
        self.known = known
        self.opened: list[FakeSession] = []

    def reopened(self, _: object) -> FakeSession:
        later = FakeSession(self.known | {0x2000})
        later.opened = self.opened
        self.opened.append(later)
        return later


def test_an_operator_that_was_registered_since() -> None:
    session = FakeSession({0x1000})
    summary = Summary(session)  # type: ignore[arg-type]
    for entry, opened in ((0x1000, 0), (0x2000, 1), (0x3000, 2), (0x3000, 2), (0x2000, 2)):
        found = summary.dispatched(DispatchCount(entry, 1, 7, DispatchEvent.CALL, 1))
        assert (found.operator, len(session.opened)) == (entry, opened)
        assert (found.keyset is None) == (entry != 0x3000)  # read by an operator's keys, which say that it is none


def test_kernels_in_tables_have_no_unnamed_namespaces() -> None:
    name = "at::(anonymous namespace)::(anonymous namespace)::wrapper_CPU_mm"
    assert top_view.short_kernel(name) == "wrapper_CPU_mm"
    assert top_view.short_kernel("torch::autograd::VariableType::(anonymous namespace)::mm") == (
        "torch::autograd::VariableType::mm"
    )
    assert top_view.short_kernel(None) == "?"
