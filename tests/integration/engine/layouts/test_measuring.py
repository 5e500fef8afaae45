"""A layout that nobody has is measured by a process of its own, before the target is stopped; whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gdbext.engine.layouts import store
from gdbext.errors import LayoutError
from gdbext.torch.measure import measurement
from support.programs import native_build, procfs
from support.programs.harness import Start, executable, tree_without_layouts, wait_until

pytestmark = [pytest.mark.torch]

SLOW_COMPILER = """#!/bin/sh
# as g++ does: the driver waits for the compiler proper, which writes into $TMPDIR
sleep 1000 &
echo "$$ $!" >"{record}.new"
echo half >"$TMPDIR/half.o"
mv "{record}.new" "{record}"
wait
"""


class Place:
    """A gdbext that knows no PyTorch, a compiler that never ends, and folders of their own for all that is written."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.record, self.scratch = (folder / name for name in ("tree", "record", "scratch"))
        self.scratch.mkdir()
        tree_without_layouts(self.tree)
        self.compiler = executable(self.tree / "bin/g++", SLOW_COMPILER.format(record=self.record))
        path = f"{self.compiler.parent}:{os.environ['PATH']}"
        self.environment = {"PATH": path, "GDBEXT_PYTHON": sys.executable, measurement.FAILED: ""}
        self.environment |= {"TMPDIR": str(self.scratch), "XDG_CACHE_HOME": str(folder / "cache")}

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A command as in a shell, whatever the caller of the tests does with SIGINT."""
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        before = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen(words, env={**os.environ, **self.environment}, preexec_fn=before, **streams)

    def compilers(self) -> list[int]:
        wait_until(self.record.exists, "the compiler runs")
        return [int(word) for word in self.record.read_text().split()]

    def assert_nothing_is_left(self) -> None:
        compilers = self.compilers()
        wait_until(lambda: not any(map(running, compilers)), "the compiler was ended")
        wait_until(lambda: not list(self.scratch.iterdir()), f"{self.scratch} is empty again")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    if found.record.exists():
        for pid in filter(running, found.compilers()):
            os.kill(pid, signal.SIGKILL)


def measure() -> None:
    measurement.measure_torch(str(native_build.torch_folder() / "lib" / store.TORCH_LIBRARY), "00" * 20)


def running(pid: int) -> bool:
    return procfs.state(pid, pid) not in ("", "Z", "X")


def test_nobody_stands_still_meanwhile_and_nothing_is_left(inferior: Start, place: Place) -> None:
    """Neither after Ctrl+C nor after SIGKILL, for which nobody can prepare."""
    hang = inferior("meta-mm")
    words = str(place.tree / "scripts/dispatch"), "-p", str(hang.pid), "--debugger", "none", "dispatch-bt"
    for number in (signal.SIGINT, signal.SIGKILL):
        with place.start(*words) as dispatch:
            place.compilers()
            assert not hang.disturbance()
            dispatch.send_signal(number)
            place.assert_nothing_is_left()
            dispatch.communicate()
        place.record.unlink()


def test_a_measuring_process_that_is_killed_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:

    def kill_when_compiling(process: measurement.MeasuringProcess, _show: object) -> None:
        place.compilers()
        process._process.kill()
        process.end()

    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measurement.MeasuringProcess, "wait", kill_when_compiling)
    with pytest.raises(LayoutError, match="killed by signal 9"):
        measure()
    place.assert_nothing_is_left()


def test_what_took_long_and_failed_is_not_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stop in gdb makes a new session, and each would compile for half a minute."""
    place.compiler.write_text(f'#!/bin/sh\necho once more >>{place.record}\necho "x.h:1: error: too old" >&2\nexit 1\n')
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measurement, "_WORTH_REMEMBERING_SECONDS", 0.0)
    for _ in range(3):
        with pytest.raises(LayoutError, match="too old"):
            measure()
    assert place.record.read_text().splitlines() == ["once more"]
    place.record.unlink()


def test_without_pyelftools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Then that of install.sh is taken."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("GDBEXT_PYTHON", "")
    bare = executable(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.setattr(measurement, "ROOT", tmp_path)
    with pytest.raises(LayoutError, match="pyelftools") as caught:
        measure()
    assert "install.sh" in caught.value.help
    package = tmp_path / "gdbext/site-3.11/elftools"
    (package / "elf").mkdir(parents=True)
    for name in ("__init__.py", "elf/__init__.py", "elf/elffile.py"):
        (package / name).touch()
    monkeypatch.setenv("GDBEXT_PYTHON", str(bare))
    assert measurement.find_python() == str(bare)


def test_packages_that_another_user_can_change_are_not_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with sudo -E, which keeps the caller's folders: code of theirs once ran as root."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    kept = tmp_path / "gdbext/site-3.11"
    kept.mkdir(parents=True)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert str(kept) in measurement.package_folders()
    for place in (kept, kept.parent, tmp_path):
        os.chown(place, 12345, 12345)
        assert str(kept) not in measurement.package_folders()
        os.chown(place, 0, 0)
    kept.chmod(0o777)
    assert str(kept) not in measurement.package_folders()


def test_python_that_measures_is_isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither .pth files of the user's packages nor PYTHON* variables nor modules of the folder that we are in."""
    witness = tmp_path / "witness"
    trap = f"import os; open({str(witness)!r}, 'a').write('ran')\n"
    for minor in range(9, 16):
        packages = tmp_path / f".local/lib/python3.{minor}/site-packages"
        packages.mkdir(parents=True)
        (packages / "trap.pth").write_text(trap)
    for name in ("json", "sitecustomize", "elftools"):
        (tmp_path / f"{name}.py").write_text(trap)
    for name, value in {"HOME": tmp_path, "PYTHONPATH": tmp_path, "GDBEXT_PYTHON": "/usr/bin/python3"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    measurement.find_python()
    assert not witness.exists()
