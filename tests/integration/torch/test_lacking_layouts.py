"""A layout that lacks a type or a member: what needs it is unknown, and all else is as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.layouts import store
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.tools.operators.op import OperatorReporter
from support.programs.harness import Inferior

pytestmark = [pytest.mark.torch]

SHIPPED = Path(store.DATA) / "torch-2.13.0+cpu-cxx11.json"
Change = Callable[[dict[str, Any]], None]
Reading = Callable[[Change], Session]


@pytest.fixture
def reading(inferior: Callable[..., Inferior], tmp_path: Path) -> Iterator[Reading]:
    """A session on a live process, with the shipped layout as ``change`` leaves it."""
    opened: list[ProcTarget] = []

    def read(change: Change) -> Session:
        document = store.read_layout(SHIPPED, whole=True)
        change(document)
        path = tmp_path / f"torch-{len(opened)}.json"
        path.write_text(json.dumps(document))
        while opened:
            opened.pop().close()
        opened.append(ProcTarget(inferior("idle").pid))
        return Session(opened[0], store.load(path))

    yield read
    for target in opened:
        target.close()


def as_it_is(_: dict[str, Any]) -> None:
    """No change."""


def without(*structs: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        for name in structs:
            del document["structs"][name]

    return change


def reports(session: Session, pattern: str) -> tuple[list[tuple[Any, ...]], list[str]]:
    """What is said of each operator but its schemas, and those."""
    reporter = OperatorReporter(session.tables, None)
    found = reporter.report_all(session.dispatcher.find(pattern))
    rest = [
        (
            one.op,
            one.overload,
            one.debug,
            one.table,
            [(each.key, each.kernel, each.debug) for each in one.registrations or ()],
        )
        for one in found
    ]
    return rest, [one.schema or "" for one in found]


@pytest.mark.parametrize("lost", ["c10::OptionalType", "c10::AliasInfo", "std::optional<c10::IValue>", "c10::RRefType"])
def test_what_a_schema_lacks_is_a_question_mark_in_it(reading: Reading, lost: str) -> None:
    whole, texts = reports(reading(as_it_is), "*mean*")
    session = reading(without(lost))
    rest, poorer = reports(session, "*mean*")
    assert rest == whole
    assert len(texts) > 10
    for before, after in zip(texts, poorer):
        assert after.partition("(")[0] == before.partition("(")[0]
        assert after == before or "?" in after
    if lost == "c10::RRefType":
        assert poorer == texts, "no such argument is there"
    else:
        assert poorer != texts


def test_without_any_schema_the_table_is_there(reading: Reading) -> None:
    whole, _ = reports(reading(as_it_is), "aten::mm")
    rest, texts = reports(reading(without("c10::FunctionSchema")), "aten::mm")
    assert [one[3] for one in rest] == [one[3] for one in whole]
    assert texts == [""]


def test_an_older_optional(reading: Reading) -> None:
    """c10::optional, before torch 2.1, has its flag in front."""
    from gdbext.torch.values.containers import optional_shape

    def older(document: dict[str, Any]) -> None:
        document["structs"]["c10::optional<int>"] = {
            "size": 8,
            "fields": {
                "init_": {"offset": 0, "size": 1, "type": "bool"},
                "storage_": {"offset": 4, "size": 4, "type": "int"},
            },
        }

    layout = reading(older).layout
    assert optional_shape(layout, "int") == (4, 0)
    assert optional_shape(layout, "c10::IValue") == (0, 16)


def test_a_flag_that_is_called_otherwise(reading: Reading) -> None:
    """torch 2.0 misspells multithreading_enabled_; other flags come and go."""

    def renamed(document: dict[str, Any]) -> None:
        fields = document["structs"]["c10::AutogradState"]["fields"]
        fields["mulithreading_enabled_"] = fields.pop("multithreading_enabled_")
        del fields["view_replay_enabled_"]

    def flags(session: Session) -> Any:
        thread = session.target.threads()[0]
        pointer = session.memory.architecture.thread_pointer(thread.registers())
        state = session.dispatch_states.read(pointer)
        assert state.problems == ()
        return state.autograd

    before, after = flags(reading(as_it_is)), flags(reading(renamed))
    assert (before.grad_mode, before.multithreading, before.view_replay) == (True, True, False)
    assert (after.grad_mode, after.multithreading, after.view_replay) == (True, True, None)
