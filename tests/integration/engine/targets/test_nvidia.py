"""The system's words on NVIDIA devices: a made-up library of the driver, whose figures are written here as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdbext.engine.targets.system import nvidia
from support.programs.native_build import build

LOG = (
    "4,900,7000,-;NVRM: GPU at PCI:0000:41:00: GPU-5f\n"
    "3,901,8000,-;NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
    "6,902,9000,-;nfs: server answers\n"
)
FIRST = nvidia.NvidiaFigures(0, "made up", 3, False, 100, 7, 118_000, 700_000, 1980, 2619, 30 << 30, 80 << 30, 2)
SECOND = nvidia.NvidiaFigures(1, "made up", 4, True, None, None, None, None, 1980, 2619, 30 << 30, 80 << 30, 2)


@pytest.fixture
def library() -> str:
    return str(build("made_up_nvml"))


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "kmsg").write_text(LOG)
    return str(tmp_path / "kmsg")


def test_the_figures_of_the_devices_whose_files_are_open_or_of_all(library: str, log: str) -> None:
    """Under MIG neither utilization nor power is told: then nothing is said to spin."""
    files = {"/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap2"}
    found = nvidia.read_nvidia({*files, "/dev/null", "socket:[7]"}, library, log)
    assert (found.driver, found.figures, found.problems) == ("580.65", (FIRST,), ())
    assert found.files == ("/dev/nvidia-caps/nvidia-cap2", "/dev/nvidia-uvm", "/dev/nvidia3", "/dev/nvidiactl")
    assert found.xids == ("NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python, GPU has fallen off the bus.",)
    assert nvidia.read_nvidia((), library, log).figures == (FIRST, SECOND)
    assert (FIRST.spins, SECOND.spins) == (True, None)
    assert FIRST._replace(milliwatts=300_000).spins is False
    assert FIRST._replace(busy_percent=40).spins is False
    assert FIRST._replace(limit_milliwatts=None).spins is None


def test_a_driver_that_does_not_answer(library: str, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDBEXT_NVML", "waits")
    monkeypatch.setattr(nvidia, "_SECONDS", 1)
    before = children()
    found = nvidia.read_nvidia((), library, log)
    assert (found.figures, found.problems) == ((), ("NVML: the driver did not answer within 1 seconds",))
    assert found.xids, "the rest is read"
    assert children() <= before, "the child that asked is gone"


def children() -> set[str]:
    return {pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def test_what_cannot_be_had_is_said(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = nvidia.read_nvidia((), "libnvidia-not-there.so", str(tmp_path / "absent"))
    assert absent.problems[0].startswith("NVML: libnvidia-not-there.so: cannot open shared object file")
    assert absent.problems[1] == "the kernel's log, for Xid errors: No such file or directory"
    monkeypatch.setenv("GDBEXT_NVML", "fails")
    assert nvidia.read_nvidia((), library, "/dev/null").problems == ("NVML: nvmlInit failed with 9",)
