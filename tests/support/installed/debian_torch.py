"""Debian's python3-torch (1.13, stripped, its files all over /usr), unpacked into a folder and not installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.programs.harness import run

PACKAGE = "python3-torch"
LIBRARIES = ("usr/lib", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/blas",
             "usr/lib/x86_64-linux-gnu/lapack")  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """Unpack it and all that it needs (150 MB to load, 630 MB) and tell what lets /usr/bin/python3 import it.

    Skips the test where Debian's package sources cannot be reached, or have another version.
    """
    if os.geteuid() or not all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        pytest.skip("needs root and Debian's apt-get")
    found = run(["apt-cache", "show", PACKAGE])
    if found.status:
        run(["apt-get", "update", "-qq"])
        found = run(["apt-cache", "show", PACKAGE])
    if not re.search(r"^Version: 1\.13", found.stdout, re.MULTILINE):
        pytest.skip(f"there is no {PACKAGE} 1.13 for this machine")
    archives = folder / "archives"
    (archives / "partial").mkdir(parents=True)
    options = ["--no-install-recommends", "--download-only", "-o", f"Dir::Cache::archives={archives}"]
    try:
        loaded = run(["apt-get", "install", "-y", "-q", *options, PACKAGE], timeout=180)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{PACKAGE} cannot be loaded in time")
    if loaded.status:
        pytest.skip(f"{PACKAGE} cannot be loaded: {loaded.stderr[-500:]}")
    for archive in sorted(archives.glob("*.deb")):
        run(["dpkg-deb", "-x", archive, folder / "root"])
        archive.unlink()
    root = folder / "root"
    return {
        "LD_LIBRARY_PATH": ":".join(str(root / library) for library in LIBRARIES),
        "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
        "OPENBLAS_NUM_THREADS": "1",
    }
