"""A torch whose libraries are stripped, as Debian ships it: names come from .dynsym alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from support.installed import torch_copies
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
