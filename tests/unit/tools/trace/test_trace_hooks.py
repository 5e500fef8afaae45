"""Which hooks a trace places: for operators with functions of their own, without, and for later ones."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.errors import TargetError, UsageError
from gdbext.tools.trace import hook_installer
from gdbext.tools.trace.hook_installer import TracedOperators, TraceHooks, TraceRequest

OWN = {"aten::mm": ["mm.call", "mm.redispatch"], "aten::add": ["add.call"]}
"""Operators with functions of their own; all others are reached through the dispatcher's."""


def operator(name: str) -> Any:
    return SimpleNamespace(qualified=name, name=name, address=hash(name))


class Dispatcher:
    """Knows some operators by their full names."""

    def __init__(self, *names: str) -> None:
        self._known = {name: operator(name) for name in names}

    def find(self, pattern: str) -> list[Any]:
        return [self._known[pattern]] if pattern in self._known else []

    def unknown(self, pattern: str) -> UsageError:
        return UsageError(f"no operator {pattern!r}")


class Installer:
    """Writes down what is placed."""

    def __init__(self) -> None:
        self.placed: list[str] = []
        self.defined: Callable[[Any], None] = lambda _: None

    def everything(self, _: Any) -> None:
        self.placed.append("everything")

    def function(self, function: Any, entry: bool) -> None:
        self.placed.append(f"{function.name}{' with entry' if entry else ''}")

    def boxed_entry(self, entry: str, calls: bool) -> None:
        self.placed.append(f"{entry}{' with calls' if calls else ''}")

    def structured(self, operators: list[Any]) -> None:
        self.placed += [f"structured {each.name}" for each in operators]

    def extensions(self, _: Any) -> None:
        self.placed.append("extensions")

    def shared_lookup(self, shared: str) -> None:
        self.placed.append(shared)

    def python_kernels(self) -> None:
        self.placed.append("Python kernels")

    def definitions(self, defined: Callable[[Any], None]) -> None:
        self.defined = defined


class Trace:
    """A request, and what comes of it."""

    def __init__(self, *patterns: str, known: tuple[str, ...] = (), **options: Any) -> None:
        self.notes: list[str] = []
        self.installer = Installer()
        self.request = TraceRequest(patterns, **options)
        dispatcher: Any = Dispatcher(*(known or patterns))
        self.operators = TracedOperators(dispatcher, self.request)
        functions: Any = SimpleNamespace(
            functions=lambda one: [SimpleNamespace(operator=one, name=name) for name in OWN.get(one.name, ())],
            boxed_entries=lambda one: [f"boxed {one.name}"],
        )
        all_calls: Any = SimpleNamespace(shared_lookups=lambda: ["callBoxed"])
        installer: Any = self.installer
        self.placed = self.installer.placed
        TraceHooks(installer, functions, all_calls, self.request, self.notes.append).place(self.operators)


def test_an_operators_own_functions() -> None:
    trace = Trace("aten::mm")
    assert trace.placed == ["mm.call", "mm.redispatch", "boxed aten::mm with calls", "extensions"]
    assert trace.notes == []


def test_every_step_and_everything() -> None:
    trace = Trace("aten::add", verbose=True)
    assert trace.placed == ["add.call with entry", "boxed aten::add with calls", "structured aten::add", "extensions"]
    assert Trace(everything=True).placed == ["everything"]


def test_the_first_dispatch_of_another_operator_begins_the_trace() -> None:
    trace = Trace("aten::mm", known=("aten::mm", "aten::add"), since="aten::add")
    assert "add.call" in trace.placed
    assert not trace.operators.includes(trace.operators.since[0])


def test_an_operator_without_functions_needs_the_shared_lookups() -> None:
    trace = Trace("my::op")
    assert trace.placed == ["boxed my::op", "extensions", "callBoxed", "Python kernels"]
    (note,) = trace.notes
    assert note == "no functions of their own in libtorch: my::op: every boxed call of any operator is stopped at"


def test_beside_others_it_is_left_out_until_boxed_calls_are_asked_for() -> None:
    trace = Trace("aten::add", "my::op")
    assert "callBoxed" not in trace.placed
    assert trace.notes == ["no functions of their own in libtorch: my::op: they are not traced; --boxed does it"]
    asked = Trace("aten::add", "my::op", boxed=True)
    assert asked.placed.count("callBoxed") == 1
    assert asked.notes == []


def test_operators_that_are_defined_later() -> None:
    trace = Trace("my::later", "aten::add", known=("aten::mm",))
    assert [error.what for error in trace.operators.unknown] == ["no operator 'my::later'", "no operator 'aten::add'"]
    before = list(trace.placed)
    late, wanted, other = operator("my::later"), operator("aten::add"), operator("aten::mm")
    for each in (wanted, other, late, late, wanted):
        trace.installer.defined(each)
    # those that all share are stopped at once
    assert trace.placed[len(before) :] == ["add.call", "callBoxed", "Python kernels"]
    assert trace.operators.includes(late)
    assert not trace.operators.includes(other)


def test_too_many_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_installer, "FUNCTION_LIMIT", 2)
    Trace("aten::mm")
    with pytest.raises(TargetError, match="3 functions would be stopped at"):
        Trace("aten::mm", "aten::add")
