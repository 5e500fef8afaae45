"""The system's gdb, and gdb 18 of PyPI, which scripts/lib/environment.sh puts beside the virtual environment."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from support.installed import machine


def usable() -> dict[str, str]:
    paths = {"gdb": shutil.which("gdb"), "gdb18": shutil.which(Path(sys.prefix) / "gdb18/bin/gdb")}
    return {name: path for name, path in paths.items() if path is not None}


def parameters() -> list[Any]:
    return [pytest.param("gdb", id="gdb"), pytest.param("gdb18", id="gdb18", marks=pytest.mark.extended)]


def executable(name: str) -> str:
    """That gdb; a test without it is skipped, and fails in continuous integration."""
    if name not in usable():
        machine.lacking(f"no {name} on this machine (scripts/test installs it)")
    return usable()[name]
