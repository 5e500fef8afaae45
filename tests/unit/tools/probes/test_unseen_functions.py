"""Functions whose dispatches cannot be counted: named where they are the program's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gdbext.tools.probes import top_view
from gdbext.tools.probes.summary import TopSection
from gdbext.tools.probes.trace_places import named


def test_the_programs_own_functions_are_named() -> None:
    functions = {start: SimpleNamespace(demangled=(f"mine::f{start}(at::Tensor const&)",)) for start in range(5)}
    symbolizer: Any = SimpleNamespace(function=functions.get)
    assert named(symbolizer, {2, 1}) == "mine::f1, mine::f2"
    assert named(symbolizer, set(range(5))) == "mine::f0, mine::f1, mine::f2, …"
    assert named(symbolizer, {99}) == ""


def test_functions_of_torch_are_no_reason_to_doubt_that_nothing_was_seen() -> None:
    def said(*unseen: str) -> str:
        return top_view.nothing(TopSection(2.0, "probes", 0, 0, 3, (), unseen=2, unseen_in=unseen))

    assert said("2 in libtorch_cpu.so") == top_view.NOTHING
    assert said("1 in libtorch_cpu.so", "1 in ops.so: mine::f").endswith("recognise them: 1 in ops.so: mine::f")
