"""A torch whose libraries are stripped, as Debian ships it: names come from .dynsym alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.installed import debian_torch, torch_copies
from support.programs.harness import Inferior, start

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

STAGES = [("redispatch", "aten::mm"), ("call", "aten::mm"), ("call", "aten::matmul"), ("call", "aten::linear")]


@pytest.fixture(scope="module")
def stripped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inferior]:
    folder = tmp_path_factory.mktemp("stripped")
    torch_copies.strip(torch_copies.copy_of_torch(folder))
    inferior = start("meta-mm", env={"PYTHONPATH": str(folder)})
    yield inferior
    inferior.assert_undisturbed()
    inferior.close()
    shutil.rmtree(folder)


@pytest.mark.parametrize("debugger", ["gdb", "none"])
def test_operators_stages_and_python_are_shown(stripped: Inferior, debugger: str) -> None:
    document = stripped.dispatch("dispatch-bt", "--native", debugger=debugger).document
    (main,) = document["threads"]
    assert [(step["event"], step["op"]) for step in main["dispatch"]] == STAGES
    assert {step["stage"] for step in main["dispatch"]} == {"in-kernel"}
    python = [frame["function"] for frame in main["python_frames"]]
    assert python[-2:] == ["meta_mm", "<module>"]


def test_keysets_are_those_of_a_build_with_names(stripped: Inferior) -> None:
    """The dispatcher is found through the code of an exported function; kernels have addresses instead of names."""
    redispatch, *calls = stripped.dispatch("dispatch-bt").document["threads"][0]["dispatch"]
    assert redispatch["keyset"]["bits"] == stripped.truth["kernel_keyset"]
    assert [call["keyset"]["bits"] for call in calls] == [call["bits"] for call in stripped.truth["calls"]]
    assert {step["confidence"] for step in (redispatch, *calls)} == {"exact"}
    assert redispatch["kernel"]["function"].startswith("meta_mm at ")
    for call in calls:
        assert call["kernel"]["function"].startswith("libtorch_cpu.so+0x"), "libtorch_cpu.so has no name for it"
        assert "/pytorch/" in call["kernel"]["registered_at"]


def test_it_is_known_which_torch_it_is(stripped: Inferior) -> None:
    """Stripping keeps the build-id: version and layout are known, and the thread's own state can be read."""
    document = stripped.dispatch("dispatch-info").document
    assert document["target"]["torch"]["version"] == stripped.truth["torch"]
    assert document["target"]["torch"]["layout"]["match"] == "exact"
    missing = {row["id"] for row in document["info"]["torch"]["symbols"]["rows"] if row["status"] == "missing"}
    assert "singleton" in missing, "a local symbol"
    assert not {"step_callbacks", "keysets", "singleton_reference"} & missing, "exported symbols"
    (thread,) = stripped.dispatch("dispatch-tls").document["threads"]
    assert "AutogradMeta" in thread["tls"]["excluded"] or "AutogradOther" in thread["tls"]["excluded"]


def test_the_verdict_names_the_operator(stripped: Inferior) -> None:
    verdict = stripped.dispatch("dispatch-diagnose").document["verdict"]
    assert (verdict["kind"], verdict["op"], verdict["stage"]) == ("blocked", "aten::mm", "in-kernel")


def test_an_operator_is_shown_by_addresses_and_places(stripped: Inferior) -> None:
    (operator,) = stripped.dispatch("dispatch-op", "aten::mm").document["operators"]
    assert operator["schema"].startswith("aten::mm(")
    (kernel,) = [row for row in operator["registrations"] if row["key"] == "CPU"]
    assert kernel["function"].startswith("libtorch_cpu.so+0x")
    assert "RegisterCPU" in kernel["debug"]


def test_where_the_names_went(stripped: Inferior, tmp_path: Path) -> None:
    """The premise: the copies have no .symtab, and the program uses them."""
    maps = Path(f"/proc/{stripped.pid}/maps").read_text()
    libraries = {line.split()[-1] for line in maps.splitlines() if line.endswith(torch_copies.STRIPPED)}
    assert len(libraries) == len(torch_copies.STRIPPED)
    for library in libraries:
        assert str(tmp_path.parent) in library
        assert b".symtab" not in Path(library).read_bytes()[-8192:]


def test_functions_without_names_are_not_taken_for_one(stripped: Inferior) -> None:
    """Different nameless frames in a row are no repetition that could be folded."""
    text = stripped.dispatch("dispatch-bt", "--native", json=False).stdout
    frames = [line for line in text.splitlines() if " ??  libtorch_python.so" in line]
    assert len(frames) > 3
    assert "in a row" not in text


# --- a torch of a distribution -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def debian() -> Iterator[Inferior]:
    inferior = start("old-torch", python="debian", env=debian_torch.environment())
    yield inferior
    inferior.assert_undisturbed()
    inferior.close()


@pytest.mark.slow
@pytest.mark.parametrize("debugger", ["gdb", "none"])
def test_debians_torch(debian: Inferior, debugger: str) -> None:
    """Stripped, with its version in the library's name; the layout is of its own headers."""
    assert debian.truth["torch"].startswith("1.13")
    document = debian.dispatch("dispatch-bt", "--native", debugger=debugger).document
    (main, *_) = document["threads"]
    steps = main["dispatch"]
    assert [(step["event"], step["op"]) for step in steps] == STAGES
    assert {(step["stage"], step["confidence"]) for step in steps} == {("in-kernel", "exact")}
    meta, *autograd = [step["keyset"]["keys"] for step in steps]
    assert (meta, autograd) == (["Meta"], [["Meta", "AutogradMeta"]] * 3)
    assert [frame["function"] for frame in main["python_frames"]][-2:] == ["meta_mm", "<module>"]
    assert document["target"]["torch"] == {
        "version": "1.13.0",
        "layout": {"id": "torch-1.13.0a0-cxx11", "match": "exact"},
    }
    verdict = debian.dispatch("dispatch-diagnose", debugger=debugger).document["verdict"]
    assert (verdict["kind"], verdict["op"], verdict["stage"]) == ("blocked", "aten::mm", "in-kernel")
    (operator,) = debian.dispatch("dispatch-op", "aten::mm", debugger=debugger).document["operators"]
    assert operator["schema"].startswith("aten::mm(")
