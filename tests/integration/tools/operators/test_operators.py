"""dispatch-op, dispatch-lookup and dispatch-tls against PyTorch's own dumps and what threads wrote of themselves."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import BadData, GdbextError
from gdbext.tools import running
from gdbext.torch.structures import OperatorEntry
from support.fakes.overlay import overlaid
from support.programs.harness import Inferior, Start
from support.programs.ways import Look
from support.truth.dispatch_dumps import state_dump, table_dump, their_lines

pytestmark = [pytest.mark.torch, pytest.mark.gdb]


@pytest.fixture
def stock(inferior: Start) -> Inferior:
    return inferior("dispatch-tables")


@pytest.fixture
def registered(inferior: Start) -> Inferior:
    return inferior("dispatch-tables", "registered")


@pytest.fixture
def modes(inferior: Start) -> Inferior:
    return inferior("dispatch-modes")


@pytest.fixture
def target(stock: Inferior) -> Iterator[Target]:
    with contextlib.closing(ProcTarget(stock.pid)) as found:
        yield found


def test_every_operator_and_every_key(registered: Inferior) -> None:
    dumps = json.loads(Path(registered.truth["dumps"]).read_text())
    assert len(dumps) > 3000
    with contextlib.closing(ProcTarget(registered.pid)) as target:
        session = Session(target)
        stale = []
        assert sorted(session.dispatcher.names) == sorted(dumps)
        for operator in session.dispatcher.operators():
            state, table = dumps[operator.qualified]
            assert state_dump(session, operator) == their_lines(state)
            cells = session.tables.table(operator)
            assert table_dump(session, cells) == their_lines(table)
            if not all(cell.consistent for cell in cells):
                stale.append(operator.qualified)
        assert stale == registered.truth["stale"]


def section(process: Inferior, name: str, *words: str) -> Any:
    document = process.dispatch(*words, debugger="none").document
    assert document["errors"] == []
    return document[name]


def show(process: Inferior, *words: str) -> dict[str, Any]:
    (operator,) = section(process, "operators", "dispatch-op", *words)
    return dict(operator)


def cell(operator: dict[str, Any], key: str) -> dict[str, Any]:
    return next(dict(entry) for entry in operator["table"] if entry["key"] == key)


def fields(entry: dict[str, Any], *names: str) -> list[Any]:
    return [entry[name] for name in names]


def test_overridden_python_kernels_show_their_source(registered: Inferior) -> None:
    operator, truth = show(registered, "aten::sin", "--key", "CPU"), registered.truth
    functions = [fields(each, "function", "active") for each in operator["registrations"]]
    stock = "at::(anonymous namespace)::wrapper_CPU_sin"
    assert functions == [["other_sin", True], ["cpu_sin", False], [stock, False]]
    for each in operator["registrations"][:2]:
        assert each["python"] == {"file": truth["file"], "line": truth["lines"][each["function"]]}
    [entry] = operator["table"]
    found = fields(entry, "function", "reason", "path", "boxed", "unboxed")
    assert found == ["other_sin", "kernel", "1", True, False]


def test_a_stock_operator_as_people_see_it(stock: Inferior) -> None:
    operator = show(stock, "aten::mm")
    assert operator["schema"] == "aten::mm(Tensor self, Tensor mat2) -> Tensor"
    assert cell(operator, "CPU")["function"] == "at::(anonymous namespace)::wrapper_CPU_mm"
    autograd = cell(operator, "AutogradMeta")
    assert fields(autograd, "index", "reason", "path") == [111, "autograd kernel", "2.4"]
    assert autograd["function"] == "torch::autograd::VariableType::(anonymous namespace)::mm"
    assert "VariableType" in autograd["debug"]
    assert fields(cell(operator, "ADInplaceOrView"), "fallthrough", "path") == [True, "3"]
    missing = {name: value for name, value in cell(operator, "NestedTensorCPU").items() if value and name != "index"}
    assert missing == {"key": "NestedTensorCPU", "reason": "missing", "path": "4"}


def test_every_kernel_has_a_name(registered: Inferior) -> None:
    with contextlib.closing(ProcTarget(registered.pid)) as target:
        dispatcher = Session(target).dispatcher
        for operator in dispatcher.operators():
            alike = set()  # kernels whose name no key changes: a hundred entries have a few of them
            for index, kernel in enumerate(operator.table):
                if kernel.valid and kernel not in alike:
                    name = dispatcher.kernels.name(kernel, dispatcher.keys.key_of_index(index), operator.name)
                    alike |= set() if name.aliases else {kernel}
                    assert name.function, (operator.qualified, index)
                    assert name.kind != "unknown", (operator.qualified, index)
                    assert not re.search("BoxedKernel|wrap_kernel|pointer", name.function), (operator.qualified, name)


@pytest.mark.parametrize(
    ("words", "message"),
    {
        "dispatch-op": "--all",
        "dispatch-op aten::mm --key AutogradMetta": "AutogradMeta",
        "dispatch-lookup mm CPU": "aten::mm, aten::mm.dtype, aten::mm.dtype_out, aten::mm.out",
        "dispatch-lookup aten::add CPU": "aten::add.Tensor",
        "dispatch-lookup aten::mm CPUU": "CPU",
        "dispatch-lookup aten::mm": "--args",
        "dispatch-lookup aten::mm --args CPU;tensor:0x10": "0x10",
    }.items(),
)
def test_wrong_words_are_answered_with_help(stock: Inferior, words: str, message: str) -> None:
    outcome = stock.dispatch(*words.split(), debugger="none", json=False, check=False)
    assert outcome.status in (1, 2), outcome
    assert outcome.stdout == ""
    assert message in outcome.stderr, outcome


def report(target: Target, *words: str) -> tuple[dict[str, Any], str]:
    """(the JSON report, the text for people) of a command on a target."""
    outcomes = [running.execute(words[0], [*words[1:], *more], lambda: Session(target)) for more in (["--json"], [])]
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes
    return dict(json.loads(outcomes[0].output)), outcomes[1].output


def little(number: int, size: int = 8) -> bytes:
    return number.to_bytes(size, "little")


def test_a_registration_in_progress_is_told(target: Target) -> None:
    session = Session(target)
    guard = session.layout.struct("c10::Dispatcher").field("guard_").offset
    mutex = session.memory.u64(session.dispatcher.address + guard) + 8
    assert session.dispatcher.registering_thread is None
    locked = overlaid(target, {mutex: little(1, 4), mutex + 8: little(4711, 4)})
    document, text = report(locked, "dispatch-op", "aten::mm", "--key", "CPU")
    assert document["findings"][0]["threads"] == [4711]
    assert "registering" in text


@pytest.mark.parametrize("damage", ["slots", "count", "entries", "key", "list", "empty-list"])
def test_a_corrupt_map_costs_that_operators_registrations(target: Target, damage: str) -> None:
    session = Session(target)
    operator = session.dispatcher.find_one("aten::mm")
    kernels = OperatorEntry(session.dispatcher.space, operator.address).place(OperatorEntry.kernels_)
    slot = session.memory.u64(kernels)
    while session.memory.u8(slot) >= 0x80:
        slot += 40
    node = session.memory.u64(slot + 16)
    patches = {
        "slots": {kernels + 8: little(12345)},
        "count": {kernels + 24: little(3)},
        "entries": {kernels: little(0x10)},
        "key": {slot + 8: little(999, 2)},
        "list": {node: little(node)},
        "empty-list": {slot + 16: little(slot + 16) * 2, slot + 32: bytes(8)},
    }[damage]
    damaged = overlaid(target, patches)
    document, text = report(damaged, "dispatch-op", "mm")
    with pytest.raises(BadData):
        Session(damaged).tables.registrations(Session(damaged).dispatcher.find_one("aten::mm"))
    broken, *others = document["operators"]
    assert broken["registrations"] is None
    assert fields(cell(broken, "CPU"), "function", "reason") == ["at::(anonymous namespace)::wrapper_CPU_mm", None]
    assert all(other["registrations"] for other in others)
    assert any("aten::mm" in finding["summary"] for finding in document["findings"])
    assert [error["where"] for error in document["errors"]] == ["registrations of aten::mm"]
    assert "as it is in memory" in text


def test_a_table_that_contradicts_its_registrations_is_a_finding(target: Target) -> None:
    session = Session(target)
    offset = session.layout.struct("c10::impl::OperatorEntry").field("dispatchTable_").offset
    cpu = session.dispatcher.find_one("aten::mm").address + offset + session.dispatcher.kernels.size
    other = session.dispatcher.find_one("aten::sin").table[1]
    patched = overlaid(target, {cpu: b"".join(map(little, other))})
    document, text = report(patched, "dispatch-op", "aten::mm", "--key", "CPU")
    lookup, lookup_text = report(patched, "dispatch-lookup", "aten::mm", "CPU")
    [finding] = document["findings"]
    entry = cell(document["operators"][0], "CPU")
    for name, function in (("sin", entry["function"]), ("mm", entry["expected"]["function"])):
        assert f"wrapper_CPU_{name}" in finding["summary"]
        assert function.endswith(f"wrapper_CPU_{name}")
    assert "registrations give" in text
    assert not lookup["lookup"]["consistent"]
    assert "contradicts the registrations" in lookup_text


def test_names_that_cannot_be_read_are_told(target: Target) -> None:
    """Both copies of a name are gone: the operator is left out, and it is not said to be unregistered."""
    session = Session(target)
    lost = session.dispatcher.find_one("aten::_sparse_semi_structured_mm")
    copies = {session.memory.u64(lost.address + session.layout.struct("c10::impl::OperatorEntry").offset("name_"))}
    for entry in session.dispatcher._slots:
        name, address = (int.from_bytes(entry.raw[at : at + 8], "little") for at in (0, 64))
        copies |= {name} if address == lost.address else set()
    assert len(copies) == 2
    holed = overlaid(target, holes=[(address, 8) for address in copies])
    document, text = report(holed, "dispatch-op", "*mm")
    assert [error for error in document["errors"] if "name of the operator at" in error["where"]]
    assert lost.qualified not in {each["op"] for each in document["operators"]}
    assert "name of the operator at" in text
    outcome = running.execute("dispatch-op", [lost.qualified], lambda: Session(holed))
    assert outcome.status == 2
    assert "registered operators cannot be read" in str(outcome.error)


def test_a_torn_operator_list_is_refused(target: Target) -> None:
    session = Session(target)
    offset = session.layout.struct("c10::Dispatcher").field("operatorLookupTable_").offset
    both = {session.dispatcher.address + offset + 16 + 24 + half: little(7) for half in (0, 32)}
    with pytest.raises(GdbextError, match="corrupt"):
        Session(overlaid(target, both)).dispatcher.operators()


def differences(state: dict[str, Any], truth: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Field to (what was read, what is true), for those that differ. Autocast: the devices that the truth names."""
    read = {**state, "autocast": {device: state["autocast"].get(device) for device in truth.get("autocast", ())}}
    return {field: (read[field], true) for field, true in truth.items() if read[field] != true}


def test_every_mode(modes: Inferior, plain_look: Look) -> None:
    threads = modes.truth["threads"]
    document = plain_look(modes, "dispatch-tls", "--all")
    assert document["errors"] == []
    read = {thread["tid"]: thread["tls"] for thread in document["threads"]}
    known = {role: thread for role, thread in threads.items() if "tls" in thread}
    assert len(known) > 20
    wrong = {role: differences(read[thread["tid"]], thread["tls"]) for role, thread in known.items()}
    assert {role: fields for role, fields in wrong.items() if fields} == {}
    untouched = read[modes.tid("untouched")]
    never_used = {**known["default"]["tls"], "torch_function": "enabled", "sequence_number": 0}
    assert differences(untouched, never_used) == {}
    assert not any(device["enabled"] for device in untouched["autocast"].values())


@pytest.mark.parametrize(
    ("role", "said"), [("autocast-cpu", "cpu (bfloat16), nesting 1"), ("fake-and-mode", "FakeTensorMode [FAKE], Mode")]
)
def test_the_text_names_what_is_on(modes: Inferior, role: str, said: str) -> None:
    arguments = ("dispatch-tls", "--thread", str(modes.tid(role)))
    assert said in modes.dispatch(*arguments, debugger="none", json=False).stdout


CPU_GRAD = "CPU,ADInplaceOrView,AutogradCPU,AutocastCPU"
"""The key set of torch.ones(2, requires_grad=True)."""
MM = ("aten::mm", "--args", f"{CPU_GRAD};{CPU_GRAD}")


def lookup(process: Inferior, *words: str) -> dict[str, Any]:
    return dict(section(process, "lookup", "dispatch-lookup", *words))


@pytest.mark.parametrize(
    ("role", "key"),
    [
        ("untouched", "AutogradCPU"),
        ("autocast-cpu", "AutocastCPU"),
        ("excluded", "CPU"),
        ("dispatch-mode", "PythonTLSSnapshot"),
        ("vmap", "FuncTorchDynamicLayerFrontMode"),
        ("python-dispatcher", "PythonDispatcher"),
    ],
)
def test_a_threads_state_decides_the_key(modes: Inferior, role: str, key: str) -> None:
    found = lookup(modes, *MM, "--thread", str(modes.tid(role)))
    assert found["key"] == key
    call = found["call"]
    assert [argument["keyset"]["keys"] for argument in call["arguments"]] == [CPU_GRAD.split(",")] * 2
    assert call["thread"] == modes.tid(role)
    if role != "untouched":
        truth = modes.truth["threads"][role]["tls"]
        assert [call[name]["keys"] for name in ("included", "excluded")] == [truth["included"], truth["excluded"]]


def test_the_chain_goes_down_to_the_backend(modes: Inferior) -> None:
    found = lookup(modes, *MM)
    links = [(link["key"], link["next"], link["certainty"]) for link in found["chain"]]
    assert links == [("AutogradCPU", "CPU", "expected"), ("CPU", None, "end")]
    assert found["kernel"]["function"] == "torch::autograd::VariableType::(anonymous namespace)::mm"
    assert found["call"]["fallthrough"]["keys"] == ["BackendSelect", "ADInplaceOrView"]
    view = lookup(modes, "aten::t", "--args", CPU_GRAD)["chain"]
    assert [link["key"] for link in view] == ["AutogradCPU", "ADInplaceOrView", "CPU"]
    autocast = lookup(modes, *MM, "--thread", str(modes.tid("autocast-cpu")))["chain"]
    assert [link["key"] for link in autocast] == ["AutocastCPU", "AutogradCPU", "CPU"]
    (composite,) = lookup(modes, "aten::linear", "--args", CPU_GRAD)["chain"]
    assert composite["why"].startswith("composite")
    assert lookup(modes, "aten::mm", "CPU,ADInplaceOrView")["kernel"]["fallthrough"]
    missing = lookup(modes, "aten::mm", "SparseCUDA")["kernel"]
    assert (missing["valid"], missing["reason"], missing["path"]) == (False, "missing", "4")
