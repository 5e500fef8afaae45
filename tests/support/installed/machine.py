"""What this machine has (torch, debuggers, compilers, Pythons). A test says by a marker which of these it needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from support.installed import pythons

PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
"""Where daemons are, too."""


def lacking(reason: str) -> None:
    import pytest  # scripts/bench uses the harness without it

    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (in CI this is a failure)", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


@cache
def own_libc() -> str:
    """The C library that this process runs on, wherever the distribution puts it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line[73:]
        if Path(path).name.startswith(("libc.so", "libc-")):
            return path
    raise LookupError("this Python runs without a shared C library")


def need_module(name: str) -> Any:
    """A module of tests/requirements.txt, or torch, for a test module that compares with it as a whole."""
    if find_spec(name) is None:
        lacking(f"{name} is not installed in this Python (scripts/test installs it)")
    return import_module(name)


def _no_program(*names: str) -> str:
    absent = [name for name in names if shutil.which(name, path=PLACES) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def _no_pythons(*versions: str) -> str:
    """A test that is parametrized by version names none here and asks ``pythons.need``."""
    absent = [version for version in versions if pythons.executable(version) is None]
    return f"no Python {', '.join(absent)} on this machine (scripts/test --all installs them)" if absent else ""


NEEDS: dict[str, Callable[..., str]] = {
    "torch": lambda: "" if find_spec("torch") else "torch is not installed in this Python (scripts/test installs it)",
    "gdb": lambda: _no_program("gdb"),
    "lldb": lambda: str(import_module("support.installed.lldbs").missing()),
    "chromium": lambda: _no_program("chromium"),
    "compiler": lambda: _no_program("gcc", "g++", "as", "strip", "objcopy", "objdump", "nm", "readelf", "c++filt"),
    "pythons": _no_pythons,
    "slurm": lambda: _no_program("slurmctld", "slurmd", "srun", "scancel", "squeue", "sinfo"),
    "sshd": lambda: _no_program("sshd", "ssh", "ssh-keygen"),
}
"""Marker to what this machine lacks for it ("" when nothing), called with the marker's arguments."""


@cache
def missing(marker: str, *arguments: str) -> str:
    return NEEDS[marker](*arguments)
