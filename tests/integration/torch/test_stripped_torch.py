"""A torch whose libraries are stripped, as Debian ships it, or were deleted or replaced after they were loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.programs import native_build
from support.programs.harness import Inferior, started

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

STAGES = [("redispatch", "aten::mm"), ("call", "aten::mm"), ("call", "aten::matmul"), ("call", "aten::linear")]
LIBRARIES = ("libtorch_cpu.so", "libtorch_python.so", "libc10.so")


@contextmanager
def own_torch(folder: Path, stripped: Sequence[str] = ()) -> Iterator[Inferior]:
    """The program with a copy of torch, most files of which are hard links; what is stripped has .dynsym alone."""
    source = native_build.torch_folder()
    shutil.copytree(source, folder / "torch", copy_function=link, ignore=shutil.ignore_patterns("include"))
    for name in stripped:
        library = folder / "torch/lib" / name
        library.unlink()
        subprocess.run(["strip", "-s", "-o", library, source / "lib" / name], check=True)
    with started("meta-mm", env={"PYTHONPATH": str(folder)}) as inferior:
        yield inferior
        inferior.assert_undisturbed()
    shutil.rmtree(folder)


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the test's folder is on another file system
        shutil.copyfile(source, target)


@pytest.fixture(scope="module")
def stripped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inferior]:
    with own_torch(tmp_path_factory.mktemp("stripped"), LIBRARIES) as inferior:
        yield inferior


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


@pytest.fixture
def hang(tmp_path: Path) -> Iterator[Inferior]:
    with own_torch(tmp_path) as inferior:
        yield inferior


def told(document: dict[str, Any]) -> str:
    return "\n".join(" ".join(error.values()) for error in document["errors"])


def told_of(step: dict[str, Any]) -> tuple[Any, ...]:
    return step["level"], step["event"], step["op"], step["key"], step["keyset"] and step["keyset"]["bits"]


def test_a_library_that_is_gone(hang: Inferior, tmp_path: Path) -> None:
    """The kernel keeps it for the process (/proc/PID/map_files). Of the core no name of another build is used, a pass
    is shown only where frames of other libraries prove it, and nobody says that no thread is in the dispatcher."""
    library = tmp_path / "torch/lib/libtorch_cpu.so"
    hang.core()
    whole = hang.dispatch("dispatch-bt", debugger="none").document["threads"][0]["dispatch"]
    library.unlink()
    live = hang.dispatch("dispatch-bt", debugger="none").document
    assert live["threads"][0]["dispatch"] == whole
    assert "libtorch_cpu.so was deleted" in told(live)
    for reason in ("No such file", "is not the file in memory"):
        document = hang.dispatch("dispatch-bt", "--native", debugger="none", core=True).document
        (main,) = document["threads"]
        inside = [frame["function"] for frame in main["frames"] if frame["module"] == "libtorch_cpu.so"]
        assert len(inside) > 3
        assert set(inside) == {"??"}
        known = [told_of(step) for step in main["dispatch"] if step["confidence"] != "unknown"]
        assert not [each for each in known if each not in map(told_of, whole)]
        assert "libtorch_cpu.so" in main["dispatch_doubt"]
        assert reason in told(document)
        assert "--sysroot" in told(document)
        assert [frame["function"] for frame in main["python_frames"]][-2:] == ["meta_mm", "<module>"]
        verdict = hang.dispatch("dispatch-diagnose", debugger="none", core=True).document["verdict"]
        assert "in aten::mm (Meta kernel)" in verdict["summary"]  # which its Python frames and libtorch_python prove
        shutil.copy(library.with_name("libc10.so"), library)  # another build is no better
