"""Libraries that were deleted or replaced after the process had loaded them, live and in its core."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.installed import torch_copies
from support.programs.harness import DISPATCH, Inferior, run, start

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

DEBUGGERS = ["gdb", "none"]


@dataclass
class Lost:
    """A hang in a torch of its own, whose libtorch_cpu.so is taken away; ``kept`` is a root folder with all files."""

    inferior: Inferior
    library: Path
    kept: Path
    before: dict[str, Any]

    def dispatch(self, kind: str, debugger: str, *words: str) -> dict[str, Any]:
        return self.inferior.dispatch(*words, debugger=debugger, core=kind == "core").document


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    folder = tmp_path_factory.mktemp("own torch")
    torch = torch_copies.copy_of_torch(folder)
    inferior = start("meta-mm", env={"PYTHONPATH": str(folder)})
    library = torch / "lib" / "libtorch_cpu.so"
    kept = tmp_path_factory.mktemp("kept")
    keep_files(inferior.pid, kept)
    inferior.core()
    found = Lost(inferior, library, kept, inferior.dispatch("dispatch-bt").document)
    library.unlink()
    yield found
    inferior.assert_undisturbed()
    inferior.close()
    shutil.rmtree(folder)
    shutil.rmtree(kept)


def keep_files(pid: int, root: Path) -> None:
    """Below ``root``, all files that the process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    for path in {Path(line.split(None, 5)[5]) for line in lines if "/" in line}:
        place = root / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.hardlink_to(path)
        except OSError:
            shutil.copyfile(path, place)


@pytest.fixture(params=["deleted", "replaced"])
def state(request: pytest.FixtureRequest, lost: Lost) -> Iterator[str]:
    """Nothing at its place, or a library of another build."""
    if request.param == "replaced":
        shutil.copy(lost.library.with_name("libc10.so"), lost.library)
    yield request.param
    lost.library.unlink(missing_ok=True)


def told(document: dict[str, Any]) -> str:
    return "\n".join(" ".join(error.values()) for error in document["errors"])


def told_of(step: dict[str, Any]) -> tuple[Any, ...]:
    return step["level"], step["event"], step["op"], step["key"], step["keyset"] and step["keyset"]["bits"]


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_a_live_process_still_has_its_file(lost: Lost, state: str, debugger: str) -> None:
    """The kernel keeps it (/proc/PID/map_files): the report is whole, and says that the file is gone."""
    document = lost.dispatch("live", debugger, "dispatch-bt")
    assert document["threads"][0]["dispatch"] == lost.before["threads"][0]["dispatch"]
    assert "libtorch_cpu.so was deleted" in told(document)
    modules = lost.dispatch("live", debugger, "dispatch-info")["info"]["modules"]
    assert [each["status"] for each in modules if each["path"] == str(lost.library)] == ["deleted"], state


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_a_core_without_its_library_claims_only_what_is_proven(lost: Lost, state: str, debugger: str) -> None:
    """No name of another build is used, a pass is shown only where frames of other libraries prove it, and nobody says
    that no thread is in the dispatcher."""
    document = lost.dispatch("core", debugger, "dispatch-bt", "--native")
    (main,) = document["threads"]
    inside = [frame for frame in main["frames"] if frame["module"] == "libtorch_cpu.so"]
    assert len(inside) > 3
    assert {frame["function"] for frame in inside} == {"??"}
    known = [told_of(step) for step in main["dispatch"] if step["confidence"] != "unknown"]
    assert not [each for each in known if each not in map(told_of, lost.before["threads"][0]["dispatch"])]
    assert "libtorch_cpu.so" in main["dispatch_doubt"]
    assert {"deleted": "No such file", "replaced": "is not the file in memory"}[state] in told(document)
    assert "--sysroot" in told(document)
    assert [frame["function"] for frame in main["python_frames"]][-2:] == ["meta_mm", "<module>"]
    verdict = lost.dispatch("core", debugger, "dispatch-diagnose")["verdict"]
    assert "in aten::mm (Meta kernel)" in verdict["summary"]  # which its Python frames and libtorch_python prove


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_a_core_with_a_sysroot_that_has_the_file(lost: Lost, debugger: str) -> None:
    """What the help advises works."""
    words = ["--debugger", debugger, "--json", "-c", lost.inferior.core(), "--sysroot", lost.kept, "dispatch-bt"]
    document = run([DISPATCH, *words]).document
    assert document["threads"][0]["dispatch"] == lost.before["threads"][0]["dispatch"]
    assert document["errors"] == []
