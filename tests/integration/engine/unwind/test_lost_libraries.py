"""A library that was deleted or replaced after the process had loaded it, live and in its core."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.installed import torch_copies
from support.programs.harness import Inferior, start

pytestmark = [pytest.mark.torch, pytest.mark.gdb]


@pytest.fixture
def hang(tmp_path: Path) -> Iterator[Inferior]:
    torch_copies.copy_of_torch(tmp_path)
    inferior = start("meta-mm", env={"PYTHONPATH": str(tmp_path)})
    yield inferior
    inferior.assert_undisturbed()
    inferior.close()
    shutil.rmtree(tmp_path)


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
