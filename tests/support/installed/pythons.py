"""The CPythons of this machine: pyenv's, those that scripts/test unpacked, and those on PATH."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.programs.native_build import cache_folder


def _roots() -> Iterator[Path]:
    """Folders with one installed version each below; $HOME may be an empty one made for a test."""
    if "PYENV_ROOT" in os.environ:
        yield Path(os.environ["PYENV_ROOT"]) / "versions"
    yield Path.home() / ".pyenv" / "versions"
    yield Path(pwd.getpwuid(os.getuid()).pw_dir) / ".pyenv" / "versions"
    yield cache_folder() / "pythons"
    if Path(sys.base_prefix).parent.name == "versions":
        yield Path(sys.base_prefix).parent


SUPPORTED = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
"""The versions whose processes gdbext reads."""
NEWER = ("3.13t", "3.14", "3.14t", "3.15")
"""Versions that it reads, too, but that not every machine of ours has; "t" is a free-threaded build."""


def newer() -> tuple[str, ...]:
    return tuple(version for version in NEWER if executable(version) is not None)


def lacking(version: str, what: str) -> None:
    """Ends a test that needs a Python which is not here, skipped everywhere if it is one of the newer ones."""
    import pytest

    from support.installed import machine

    if version in NEWER:
        pytest.skip(what)
    machine.lacking(what)


@cache
def prefixes(version: str) -> tuple[Path, ...]:
    """Installed CPythons "3.9" or "3.9.18", each once, by their prefix; pyenv calls a 3.13t "3.13.5t"."""
    pattern = f"{version[:-1]}.*t" if version.endswith("t") else f"{version}.*[0-9]"
    found = [each for root in _roots() for each in root.glob(version if version.count(".") > 1 else pattern)]
    return tuple(sorted({each.resolve() for each in found if (each / "bin").is_dir()}))


def executable(version: str) -> str | None:
    """A python "3.9" or "3.9.18", pyenv's first; None where there is none."""
    name = f"python{version}" if version.count(".") == 1 else f"python{version.rpartition('.')[0]}"
    found = (str(prefix / "bin" / name) for prefix in prefixes(version) if (prefix / "bin" / name).exists())
    return next(found, None) or shutil.which(f"python{version}")


def need(version: str) -> str:
    """That Python; the test is skipped on a machine without it, and fails on the project's own (CI=true)."""
    from support.installed import machine

    if executable(version) is None:
        machine.lacking(f"no Python {version} on this machine (scripts/test --all installs it)")
    return str(executable(version))
