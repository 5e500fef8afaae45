"""Every operator's schema, registrations and dispatch table against PyTorch's own dumps of the same process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import BadData, GdbextError
from gdbext.tools import table
from gdbext.torch.registry.operator_names import declared_schemas
from support.fakes.overlay import OverlayTarget
from support.programs.harness import Inferior
from support.programs.ways import Look
from support.truth.dispatch_dumps import state_dump, table_dump, their_lines

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

GetInferior = Callable[..., Inferior]
VARIANTS = [(), ("registered",)]


@contextlib.contextmanager
def target_of(inferior: Inferior, kind: str) -> Iterator[Target]:
    target: Target = CoreTarget(str(inferior.core())) if kind == "core" else ProcTarget(inferior.pid)
    try:
        yield target
    finally:
        target.close()


@pytest.mark.parametrize(("variant", "kind"), [*zip(VARIANTS, ("core", "live"))], ids=["stock-core", "registered-live"])
def test_every_operator_and_every_key(inferior: GetInferior, variant: tuple[str, ...], kind: str) -> None:
    process = inferior("dispatch-tables", *variant)
    dumps = json.loads(Path(process.truth["dumps"]).read_text())
    assert len(dumps) > 3000
    with target_of(process, kind) as target:
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
        assert stale == process.truth["stale"]


def test_the_command_gives_all_of_them(inferior: GetInferior) -> None:
    process = inferior("dispatch-tables", "registered")
    dumps = json.loads(Path(process.truth["dumps"]).read_text())
    document = process.dispatch("dispatch-op", "--all", debugger="none").document
    assert document["errors"] == []
    assert [finding["summary"].split(":", 3)[0:3] for finding in document["findings"]] == [
        name.split(":") for name in process.truth["stale"]
    ]
    assert len(document["operators"]) == len(dumps)
    for operator in document["operators"]:
        name = f"{operator['op']}.{operator['overload']}" if operator["overload"] else operator["op"]
        state, table = dumps[name]
        lines = [
            f"{cell['key']}: {'fallthrough ' if cell['fallthrough'] else ''}{cell['debug']} [{cell['reason']}]"
            for cell in operator["table"]
            if cell["valid"]
        ]
        assert lines == their_lines(table)
        assert len(operator["registrations"]) == sum(" :: " in line for line in state.split("\n"))
        missing = [cell for cell in operator["table"] if not cell["valid"]]
        assert all(cell["reason"] == "missing" and cell["path"] == "4" for cell in missing)


def only(document: dict[str, Any]) -> dict[str, Any]:
    assert document["errors"] == []
    assert len(document["operators"]) == 1
    return dict(document["operators"][0])


def cell(operator: dict[str, Any], key: str) -> dict[str, Any]:
    return next(dict(entry) for entry in operator["table"] if entry["key"] == key)


def test_overridden_python_kernels_show_their_source(inferior: GetInferior, look: Look) -> None:
    process = inferior("dispatch-tables", "registered")
    operator = only(look(process, "dispatch-op", "aten::sin", "--key", "CPU"))
    newest, older, stock = operator["registrations"]
    truth = process.truth
    assert (newest["function"], newest["active"]) == ("other_sin", True)
    assert (older["function"], older["active"]) == ("cpu_sin", False)
    assert newest["python"] == {"file": truth["file"], "line": truth["lines"]["other_sin"]}
    assert older["python"] == {"file": truth["file"], "line": truth["lines"]["cpu_sin"]}
    assert stock["function"] == "at::(anonymous namespace)::wrapper_CPU_sin"
    assert not stock["active"]
    [entry] = operator["table"]
    assert (entry["function"], entry["reason"], entry["path"], entry["boxed"], entry["unboxed"]) == (
        "other_sin",
        "kernel",
        "1",
        True,
        False,
    )


def test_a_stock_operator_as_people_see_it(inferior: GetInferior, look: Look) -> None:
    operator = only(look(inferior("dispatch-tables"), "dispatch-op", "aten::mm"))
    assert operator["schema"] == "aten::mm(Tensor self, Tensor mat2) -> Tensor"
    assert cell(operator, "CPU")["function"] == "at::(anonymous namespace)::wrapper_CPU_mm"
    autograd = cell(operator, "AutogradMeta")
    assert (autograd["index"], autograd["reason"], autograd["path"]) == (111, "autograd kernel", "2.4")
    assert autograd["function"] == "torch::autograd::VariableType::(anonymous namespace)::mm"
    assert "VariableType" in autograd["debug"]
    assert cell(operator, "ADInplaceOrView")["fallthrough"]
    assert cell(operator, "ADInplaceOrView")["path"] == "3"
    assert cell(operator, "NestedTensorCPU") | {"index": 0} == {
        "key": "NestedTensorCPU",
        "index": 0,
        "function": None,
        "valid": False,
        "boxed": False,
        "unboxed": False,
        "sym_unboxed": False,
        "fallthrough": False,
        "debug": None,
        "reason": "missing",
        "path": "4",
        "source": None,
    }


def test_ambiguity_removal_and_operators_without_schema(inferior: GetInferior) -> None:
    process = inferior("dispatch-tables", "registered")

    def show(*words: str) -> dict[str, Any]:
        return only(process.dispatch("dispatch-op", *words, debugger="none").document)

    other = cell(show("gdbext_test::ambiguous"), "AutogradOther")
    assert (other["reason"], other["path"]) == ("ambiguous autogradother", "2.3")
    assert "expected" not in other
    stale = cell(show("gdbext_test::composite"), "AutogradOther")
    assert (stale["reason"], stale["path"]) == ("ambiguous autogradother", "2.3")
    assert stale["expected"]["function"] == "c10::ambiguous_autogradother_kernel"
    assert process.truth["stale"] == ["gdbext_test::composite"]
    assert cell(show("aten::tan"), "CPU")["function"] == "at::(anonymous namespace)::wrapper_CPU_tan"
    never = show("gdbext_test::never_defined")
    assert (never["schema"], never["debug"]) == (None, None)
    assert [(one["key"], one["function"]) for one in never["registrations"]] == [("Meta", "any_fallback")]
    inplace = show("gdbext_test::inplace")
    assert cell(inplace, "AutogradCPU")["fallthrough"]
    assert cell(inplace, "CPU")["function"].startswith("Callable")
    fallback = cell(show("aten::add.Tensor"), "PrivateUse2")
    assert fallback["path"] in ("2.1", "2.2", "3")


def test_every_kernel_has_a_name(inferior: GetInferior) -> None:
    process = inferior("dispatch-tables", "registered")
    with target_of(process, "live") as target:
        session = Session(target)
        nameless = set()
        for operator in session.dispatcher.operators():
            alike = set()  # kernels whose name no key changes: a hundred entries have a few of them
            for index, kernel in enumerate(operator.table):
                if kernel in alike:
                    continue
                key = session.dispatcher.keys.key_of_index(index)
                name = session.dispatcher.kernels.name(kernel, key, operator.name)
                if not name.aliases:
                    alike.add(kernel)
                wrapped = "BoxedKernel" in name.function or "wrap_kernel" in name.function or "pointer" in name.function
                if kernel.valid and (not name.function or name.kind == "unknown" or wrapped):
                    nameless.add((operator.qualified, key, name))
    assert nameless == set()


# --- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dispatch-op", "aten::adddmm"], "aten::addmm"),
        (["dispatch-op", "mm.outt"], "aten::mm.out"),
        (["dispatch-op"], "--all"),
        (["dispatch-op", "mm", "--all"], "--all"),
        (["dispatch-op", "aten::mm", "--key", "AutogradMetta"], "AutogradMeta"),
        (["dispatch-lookup", "mm", "CPU"], "aten::mm, aten::mm.dtype, aten::mm.dtype_out, aten::mm.out"),
        (["dispatch-lookup", "aten::add", "CPU"], "aten::add.Tensor"),
        (["dispatch-lookup", "aten::mm", "CPUU"], "CPU"),
        (["dispatch-lookup", "aten::mm"], "--args"),
        (["dispatch-lookup", "aten::mm", "CPU", "--thread", "1"], "--args"),
        (["dispatch-lookup", "aten::mm", "0x8000000000000000"], "bit 63"),
        (["dispatch-lookup", "aten::mm", "--args", "CPU;tensor:0x10"], "0x10"),
        (["dispatch-keyset", "Metta"], "Meta"),
    ],
    ids=" ".join,
)
def test_wrong_words_are_answered_with_help(inferior: GetInferior, words: list[str], message: str) -> None:
    outcome = inferior("dispatch-tables").dispatch(*words, debugger="none", json=False, check=False)
    assert outcome.status in (1, 2), outcome
    assert outcome.stdout == ""
    assert message in outcome.stderr, outcome


def document_of(target: Target, *words: str) -> dict[str, Any]:
    """The JSON report of a command on a target."""
    outcome = table.execute(words[0], [*words[1:], "--json"], lambda: Session(target))
    assert outcome.status == 0, outcome.error
    return dict(json.loads(outcome.output))


def report(target: Target, *words: str) -> tuple[dict[str, Any], str]:
    """(the JSON report, the text for people) of a command on a target."""
    text = table.execute(words[0], list(words[1:]), lambda: Session(target))
    assert text.status == 0, text.error
    return document_of(target, *words), text.output


def test_a_registration_in_progress_is_told(inferior: GetInferior) -> None:
    process = inferior("dispatch-tables")
    with target_of(process, "live") as target:
        session = Session(target)
        dispatcher = session.dispatcher
        guard = session.layout.struct("c10::Dispatcher").field("guard_").offset
        mutex = session.memory.u64(dispatcher.address + guard) + 8
        assert dispatcher.registering_thread is None
        locked = OverlayTarget(target, {mutex: (1).to_bytes(4, "little"), mutex + 8: (4711).to_bytes(4, "little")})
        document, text = report(locked, "dispatch-op", "aten::mm", "--key", "CPU")
    assert document["findings"][0]["threads"] == [4711]
    assert "registering" in text


@pytest.mark.parametrize("damage", ["slots", "count", "entries", "key", "list", "empty-list"])
def test_a_corrupt_map_costs_that_operators_registrations(inferior: GetInferior, damage: str) -> None:
    process = inferior("dispatch-tables")
    with target_of(process, "live") as target:
        session = Session(target)
        operator = session.dispatcher.find_one("aten::mm")
        kernels = session.dispatcher.kernels_map(operator.address)
        slot = session.memory.u64(kernels)
        while session.memory.u8(slot) >= 0x80:
            slot += 40
        node = session.memory.u64(slot + 16)
        patches = {
            "slots": {kernels + 8: (12345).to_bytes(8, "little")},
            "count": {kernels + 24: (3).to_bytes(8, "little")},
            "entries": {kernels: (0x10).to_bytes(8, "little")},
            "key": {slot + 8: (999).to_bytes(2, "little")},
            "list": {node: node.to_bytes(8, "little")},
            "empty-list": {slot + 16: (slot + 16).to_bytes(8, "little") * 2, slot + 32: bytes(8)},
        }[damage]
        damaged = OverlayTarget(target, patches)
        document, text = report(damaged, "dispatch-op", "mm")
        with pytest.raises(BadData):
            Session(damaged).tables.registrations(Session(damaged).dispatcher.find_one("aten::mm"))
    broken, *others = document["operators"]
    assert broken["registrations"] is None
    assert cell(broken, "CPU")["function"] == "at::(anonymous namespace)::wrapper_CPU_mm"
    assert cell(broken, "CPU")["reason"] is None
    assert all(other["registrations"] for other in others)
    assert any("aten::mm" in finding["summary"] for finding in document["findings"])
    assert [error["where"] for error in document["errors"]] == ["registrations of aten::mm"]
    assert "as it stands" in text


def test_a_table_that_contradicts_its_registrations_is_a_finding(inferior: GetInferior) -> None:
    process = inferior("dispatch-tables")
    with target_of(process, "live") as target:
        session = Session(target)
        operator = session.dispatcher.find_one("aten::mm")
        table = operator.address + session.layout.struct("c10::impl::OperatorEntry").field("dispatchTable_").offset
        other = session.dispatcher.find_one("aten::sin").table[1]
        size = session.dispatcher.kernels.size
        patch = {table + size: b"".join(word.to_bytes(8, "little") for word in other)}
        document, text = report(OverlayTarget(target, patch), "dispatch-op", "aten::mm", "--key", "CPU")
        lookup, lookup_text = report(OverlayTarget(target, patch), "dispatch-lookup", "aten::mm", "CPU")
    [finding] = document["findings"]
    assert "wrapper_CPU_sin" in finding["summary"]
    assert "wrapper_CPU_mm" in finding["summary"]
    entry = cell(document["operators"][0], "CPU")
    assert entry["function"].endswith("wrapper_CPU_sin")
    assert entry["expected"]["function"].endswith("wrapper_CPU_mm")
    assert "lead to" in text
    assert not lookup["lookup"]["consistent"]
    assert "not what the registrations lead to" in lookup_text


def test_an_operator_on_unreadable_pages_costs_that_operator(inferior: GetInferior) -> None:
    """It and what else lies on its pages, such as the names of others: they are wherever the heap had room."""
    process = inferior("dispatch-tables")
    with target_of(process, "live") as target:
        whole = Session(target).dispatcher.find("*mm")
        assert len(whole) > 40
        for operator in whole[::4]:
            holed = OverlayTarget(target, holes=[(operator.address, 6048)])
            document = document_of(holed, "dispatch-op", "*mm")
            assert document["errors"], operator
            assert all("0x" in error["what"] or "0x" in error["where"] for error in document["errors"])
            assert len(document["operators"]) > len(whole) - 10


def test_names_that_cannot_be_read_are_told(inferior: GetInferior) -> None:
    """Both copies of a name are gone: the operator is left out, and nobody says that it is not registered."""
    process = inferior("dispatch-tables")
    with target_of(process, "live") as target:
        lost = Session(target).dispatcher.find_one("aten::_sparse_semi_structured_mm")
        session = Session(target)
        copies = [session.memory.u64(lost.address + session.layout.struct("c10::impl::OperatorEntry").offset("name_"))]
        copies += [
            int.from_bytes(entry.raw[:8], "little")
            for entry in session.dispatcher._slots
            if int.from_bytes(entry.raw[64:72], "little") == lost.address
        ]
        assert len(set(copies)) == 2
        holed = OverlayTarget(target, holes=[(address, 8) for address in copies])
        document, text = report(holed, "dispatch-op", "*mm")
        assert [error for error in document["errors"] if "name of the operator at" in error["where"]]
        assert "aten::_sparse_semi_structured_mm" not in {each["op"] for each in document["operators"]}
        assert "name of the operator at" in text
        outcome = table.execute("dispatch-op", [lost.qualified], lambda: Session(holed))
        assert outcome.status == 2
        assert "registered operators cannot be read" in str(outcome.error)


def test_a_torn_operator_list_is_refused(inferior: GetInferior) -> None:
    process = inferior("dispatch-tables")
    with target_of(process, "live") as target:
        session = Session(target)
        offset = session.layout.struct("c10::Dispatcher").field("operatorLookupTable_").offset
        both = {session.dispatcher.address + offset + 16 + 24 + half: (7).to_bytes(8, "little") for half in (0, 32)}
        with pytest.raises(GdbextError, match="corrupt"):
            Session(OverlayTarget(target, both)).dispatcher.operators()


_NATIVE = """
import json, sys, torch
release = torch.__version__.partition("+")[0]
declared = json.load(sys.stdin)[release]
print(json.dumps({
    "declared": [str(torch._C.parse_schema(each)) for each in declared],
    "registered": [str(each) for each in torch._C._jit_get_all_schemas()],
    "names": torch._C._dispatch_get_all_op_names(),
}))
"""


def test_declared_schemas_are_those_of_the_installed_torch() -> None:
    """What ``dispatch-op --torch`` tells without a process, beside what PyTorch has registered."""
    words = [sys.executable, "-W", "ignore", "-c", _NATIVE]
    schemas = json.dumps(dict(declared_schemas()))
    found = json.loads(subprocess.run(words, input=schemas, capture_output=True, text=True, check=True).stdout)
    assert len(found["declared"]) > 3000
    assert set(found["declared"]) <= set(found["registered"])
    names = {each.partition("(")[0] for each in found["declared"]}
    others = {each for each in found["names"] if each.startswith("aten::")} - names
    assert all("quantized" in each or each == "aten::get_gradients" for each in others), others
