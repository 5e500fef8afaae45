"""dispatch-top: names that it learns while it counts, what it cannot count, and when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.tools.probes import top, top_view
from gdbext.tools.probes.dispatch_counter import DispatchCount
from gdbext.tools.probes.summary import Summary, TopSection
from gdbext.tools.probes.trace_places import named
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


def test_functions_that_cannot_be_counted_are_named_where_they_are_the_programs_own() -> None:
    functions = {start: SimpleNamespace(demangled=(f"mine::f{start}(at::Tensor const&)",)) for start in range(5)}
    symbolizer: Any = SimpleNamespace(function=functions.get)
    assert named(symbolizer, {2, 1}) == "mine::f1, mine::f2"
    assert named(symbolizer, set(range(5))) == "mine::f0, mine::f1, mine::f2, …"
    assert named(symbolizer, {99}) == ""

    def nothing_seen(*unseen: str) -> str:
        return top_view.nothing(TopSection(2.0, "probes", 0, 0, 3, (), unseen=2, unseen_in=unseen))

    assert nothing_seen("2 in libtorch_cpu.so") == top_view.NOTHING
    text = nothing_seen("1 in libtorch_cpu.so", "1 in ops.so: mine::f")
    assert text.endswith("recognise them: 1 in ops.so: mine::f")


@pytest.mark.parametrize(
    ("ends", "interrupted", "over", "learnt"), [(9, 9, True, 3), (2, 9, False, 1), (0, 9, False, 0), (9, 2.5, False, 2)]
)
def test_it_learns_until_the_process_ends(
    ends: float, interrupted: float, over: bool, learnt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that is there until that second, for a user who interrupts at that one."""
    now, calls = [0.0], []

    def sleep(seconds: float) -> bool:
        now[0] += seconds
        return now[0] < interrupted

    gone = Ending(EndingKind.GONE, "the process ended")
    world: Any = SimpleNamespace(sleep=sleep, ending=lambda: gone if now[0] >= ends else None)
    monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert top._counted(2.5, world, world, lambda: calls.append(now[0])) is over
    assert len(calls) == learnt
