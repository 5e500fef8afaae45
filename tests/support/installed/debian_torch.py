"""Debian's python3-torch (1.13, stripped, its files all over /usr), unpacked into a folder and not installed.

The folder is kept in the tests' cache: to load and unpack it takes a processor 20 seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.programs.harness import run
from support.programs.native_build import cache_folder

PACKAGE = "python3-torch"
LIBRARIES = (
    "usr/lib",
    "lib/x86_64-linux-gnu",
    *(f"usr/lib/x86_64-linux-gnu{part}" for part in ("", "/blas", "/lapack")),
)
_UNUSED = re.compile(r"-(?:data|common|test)_")
"""Packages that no program loads: tables of GDAL and PROJ, settings of databases, the tests of libtorch."""


def environment() -> dict[str, str]:
    """Unpack it and all that it needs (150 MB to load, 580 MB), where that has not been done, and tell what lets
    /usr/bin/python3 import it.

    Skips the test where Debian's package sources cannot be reached, or have another version.
    """
    if os.geteuid() or not all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        pytest.skip("needs root and Debian's apt-get")
    root = _root()
    return {
        "LD_LIBRARY_PATH": ":".join(str(root / library) for library in LIBRARIES),
        "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
        "OPENBLAS_NUM_THREADS": "1",
    }


def _root() -> Path:
    """The folder of the unpacked packages: that of an earlier run where apt would choose the same ones."""
    cache = cache_folder() / "debian-torch"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be unpacking it
        root = cache / _state()
        if not root.exists():
            _need_package()
            root = cache / _state()  # what apt knows may be newer now
        if not root.exists():
            for old in sorted(cache.glob("root-*"), key=lambda each: each.stat().st_mtime)[:-1]:  # a run may use that
                shutil.rmtree(old, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True) as folder:
                _unpack(Path(folder)).rename(root)
    return root


def _state() -> str:
    """A name for all that apt chooses from: what is installed, and the lists of what there is."""
    lists = sorted(Path("/var/lib/apt/lists").glob("*_Packages*"))
    digest = hashlib.sha256(Path("/var/lib/dpkg/status").read_bytes())
    digest.update(repr([(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in lists]).encode())
    digest.update(Path(__file__).read_bytes())
    return f"root-{digest.hexdigest()[:16]}"


def _need_package() -> None:
    found = run(["apt-cache", "show", PACKAGE])
    if found.status:
        run(["apt-get", "update", "-qq"])
        found = run(["apt-cache", "show", PACKAGE])
    if not re.search(r"^Version: 1\.13", found.stdout, re.MULTILINE):
        pytest.skip(f"there is no {PACKAGE} 1.13 for this machine")


def _unpack(folder: Path) -> Path:
    """The packages loaded and unpacked, in a folder below that one."""
    archives, root = folder / "archives", folder / "root"
    (archives / "partial").mkdir(parents=True)
    options = ["--no-install-recommends", "--download-only", "-o", f"Dir::Cache::archives={archives}"]
    try:
        loaded = run(["apt-get", "install", "-y", "-q", *options, PACKAGE], timeout=180)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{PACKAGE} cannot be loaded in time")
    if loaded.status:
        pytest.skip(f"{PACKAGE} cannot be loaded: {loaded.stderr[-500:]}")
    for archive in sorted(archives.glob("*.deb")):
        if not _UNUSED.search(archive.name):
            unpacked = run(["dpkg-deb", "-x", archive, root])
            assert unpacked.status == 0, unpacked
        archive.unlink()
    shutil.rmtree(root / "usr/share", ignore_errors=True)  # documents
    return root
