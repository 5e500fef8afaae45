"""Functions whose dispatches cannot be counted: named where they are the program's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.hosts.resume.all_calls import AllCalls
from gdbext.tools.probes import top_view
from gdbext.tools.probes.summary import TopSection


def calls(monkeypatch: pytest.MonkeyPatch, starts: set[int], extension: Any) -> AllCalls:
    made = AllCalls.__new__(AllCalls)
    named = {start: SimpleNamespace(demangled=(f"mine::f{start}(at::Tensor const&)",)) for start in starts}
    made._session = SimpleNamespace(symbolizer=SimpleNamespace(function=named.get))  # type: ignore[assignment]
    monkeypatch.setattr(AllCalls, "_extensions", [extension])
    monkeypatch.setattr(AllCalls, "_unseen", lambda *_: starts)
    return made


def test_the_programs_own_functions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own, torchs = SimpleNamespace(name="ops.so"), SimpleNamespace(name="libtorch_cpu.so")
    assert calls(monkeypatch, {2, 1}, own).named_not_seen(own) == "mine::f1, mine::f2"  # type: ignore[arg-type]
    assert calls(monkeypatch, set(range(5)), own).named_not_seen(own).endswith("mine::f2, …")  # type: ignore[arg-type]
    assert calls(monkeypatch, {1}, own).named_not_seen(torchs) == ""  # type: ignore[arg-type]


def test_functions_of_torch_are_no_reason_to_doubt_that_nothing_was_seen() -> None:
    def said(*unseen: str) -> str:
        return top_view.nothing(TopSection(2.0, "probes", 0, 0, 3, (), unseen=2, unseen_in=unseen))

    assert said("2 in libtorch_cpu.so") == top_view.NOTHING
    assert said("1 in libtorch_cpu.so", "1 in ops.so: mine::f").endswith("recognise them: 1 in ops.so: mine::f")
