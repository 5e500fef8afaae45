"""A torch whose libraries are stripped, as Debian ships it: names come from .dynsym alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.installed import debian_torch, torch_copies
from support.programs.harness import Inferior, started

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

STAGES = [("redispatch", "aten::mm"), ("call", "aten::mm"), ("call", "aten::matmul"), ("call", "aten::linear")]


@pytest.fixture(scope="module")
def stripped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inferior]:
    folder = tmp_path_factory.mktemp("stripped")
    torch_copies.strip(torch_copies.copy_of_torch(folder))
    with started("meta-mm", env={"PYTHONPATH": str(folder)}) as inferior:
        yield inferior
        inferior.assert_undisturbed()
    shutil.rmtree(folder)


def test_the_libraries_are_stripped(stripped: Inferior, tmp_path: Path) -> None:
    maps = Path(f"/proc/{stripped.pid}/maps").read_text()
    libraries = {line.split()[-1] for line in maps.splitlines() if line.endswith(torch_copies.STRIPPED)}
    assert len(libraries) == len(torch_copies.STRIPPED)
    for library in libraries:
        assert str(tmp_path.parent) in library
        assert b".symtab" not in Path(library).read_bytes()[-8192:]


@pytest.mark.parametrize("debugger", ["gdb", "none"])
def test_operators_keysets_and_python_are_those_of_a_build_with_names(stripped: Inferior, debugger: str) -> None:
    """The dispatcher is found through the code of an exported function; kernels have addresses instead of names."""
    document = stripped.dispatch("dispatch-bt", "--native", debugger=debugger).document
    (main,) = document["threads"]
    redispatch, *calls = main["dispatch"]
    assert [(step["event"], step["op"]) for step in main["dispatch"]] == STAGES
    assert {(step["stage"], step["confidence"]) for step in main["dispatch"]} == {("in-kernel", "exact")}
    assert redispatch["keyset"]["bits"] == stripped.truth["kernel_keyset"]
    assert [call["keyset"]["bits"] for call in calls] == [call["bits"] for call in stripped.truth["calls"]]
    assert redispatch["kernel"]["function"].startswith("meta_mm at ")
    for call in calls:
        assert call["kernel"]["function"].startswith("libtorch_cpu.so+0x"), "libtorch_cpu.so has no name for it"
        assert "/pytorch/" in call["kernel"]["registered_at"]
    assert [frame["function"] for frame in main["python_frames"]][-2:] == ["meta_mm", "<module>"]


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
    (operator,) = stripped.dispatch("dispatch-op", "aten::mm").document["operators"]
    assert operator["schema"].startswith("aten::mm(")
    (kernel,) = [row for row in operator["registrations"] if row["key"] == "CPU"]
    assert "RegisterCPU" in kernel["debug"]


@pytest.mark.slow
def test_debians_torch() -> None:
    """Stripped, with its version in the library's name; the layout is of its own headers."""
    with started("old-torch", python="debian", env=debian_torch.environment()) as debian:
        assert debian.truth["torch"].startswith("1.13")
        document = debian.dispatch("dispatch-bt", "--native", debugger="none").document
        verdict = debian.dispatch("dispatch-diagnose", debugger="none").document["verdict"]
        (operator,) = debian.dispatch("dispatch-op", "aten::mm", debugger="none").document["operators"]
    (main, *_) = document["threads"]
    steps = main["dispatch"]
    assert [(step["event"], step["op"]) for step in steps] == STAGES
    assert {(step["stage"], step["confidence"]) for step in steps} == {("in-kernel", "exact")}
    meta, *autograd = [step["keyset"]["keys"] for step in steps]
    assert (meta, autograd) == (["Meta"], [["Meta", "AutogradMeta"]] * 3)
    assert [frame["function"] for frame in main["python_frames"]][-2:] == ["meta_mm", "<module>"]
    layout = {"id": "torch-1.13.0a0-cxx11", "match": "exact"}
    assert document["target"]["torch"] == {"version": "1.13.0", "layout": layout}
    assert (verdict["kind"], verdict["op"], verdict["stage"]) == ("blocked", "aten::mm", "in-kernel")
    assert operator["schema"].startswith("aten::mm(")
