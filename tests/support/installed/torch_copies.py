"""Copies of the installed torch whose libraries a test may strip, delete or replace; most files are hard links."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from support.programs.harness import HarnessError, run


def copy_of_torch(folder: Path) -> Path:
    """``folder``/torch; a program imports it with PYTHONPATH=``folder``."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise HarnessError("torch is not installed here")
    source = Path(spec.submodule_search_locations[0])
    shutil.copytree(source, folder / "torch", copy_function=_link, ignore=shutil.ignore_patterns("include"))
    return folder / "torch"


def _link(source: str, target: str) -> None:
    """A hard link, or a copy where the test's folder is on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def strip(torch: Path) -> None:
    """Take .symtab out of the large libraries, as distributions do. What is exported stays in .dynsym."""
    for name in ("libtorch_cpu.so", "libtorch_python.so", "libc10.so"):
        library, stripped = torch / "lib" / name, torch / "lib" / f"{name}.stripped"
        outcome = run(["strip", "-s", "-o", stripped, library.resolve()])
        if outcome.status:
            raise HarnessError(f"{name} cannot be stripped\n{outcome}")
        stripped.replace(library)
