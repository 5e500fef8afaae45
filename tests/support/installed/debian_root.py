"""A root file system made of Debian's packages alone, those that share/containers/Containerfile asks for.

The packages come through apt as this machine has it. Nothing is installed here, and no script of a package runs. The
root is kept in the user's cache folder for the next time; nobody writes there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from support.programs.harness import ROOT

CONTAINERFILE = ROOT / "share" / "containers" / "Containerfile"
_BASE = ("base-files", "dash", "coreutils")
"""What of debian:bookworm-slim our own programs use."""
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdbext-tests" / "debian"
_PATIENCE = 120.0


def packages() -> list[str]:
    """The packages that the Containerfile installs."""
    text = CONTAINERFILE.read_text().replace("\\\n", " ")
    line = re.search(r"apt-get install -y --no-install-recommends ([\w .+-]+)", text)
    assert line is not None
    return line[1].split()


def root() -> Path:
    """The folder of such a root. Raises OSError: why the packages cannot be had."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise OSError("no apt-get and dpkg-deb: this is no Debian")
    (_CACHE / "partial").mkdir(parents=True, exist_ok=True)
    (_CACHE / "status").touch()
    names = _names(_apt("--simulate"))
    made = _CACHE / f"root-{hashlib.sha256(' '.join(names).encode()).hexdigest()[:16]}"
    if not made.exists():
        _apt("--download-only")
        _unpack([_CACHE / name for name in names], made)
    return made


def _apt(how: str) -> str:
    """What apt-get says to an installation of these packages into an empty root. Raises OSError."""
    places = (f"Dir::State::status={_CACHE}/status", f"Dir::Cache::archives={_CACHE}", "APT::Sandbox::User=root")
    options = [word for place in places for word in ("-o", place)]
    command = ["apt-get", *options, "-y", "-q", "--no-install-recommends", how, "install", *_BASE, *packages()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError("apt-get does not answer") from error
    if done.returncode != 0:
        raise OSError(f"apt-get cannot give Debian's packages: {done.stderr.strip()[-300:]}")
    return done.stdout


def _names(simulated: str) -> list[str]:
    """The names of the files of the packages: ``Inst NAME (VERSION ORIGIN [ARCHITECTURE])``."""
    found = re.findall(r"^Inst (\S+) \((\S+) .*\[(\w+)\]\)", simulated, re.MULTILINE)
    return sorted(f"{name}_{version.replace(':', '%3a')}_{kind}.deb" for name, version, kind in found)


def _unpack(archives: list[Path], made: Path) -> None:
    place = Path(tempfile.mkdtemp(dir=_CACHE))
    place.chmod(0o755)
    try:
        words = ["xargs", "-0", "-n1", "-P2", "sh", "-c", 'exec dpkg-deb --extract "$1" "$0"', str(place)]
        subprocess.run(words, input="\0".join(map(str, archives)).encode(), check=True, capture_output=True)
        for folder in ("usr/local/bin", "opt"):  # which a script of base-files makes
            (place / folder).mkdir(parents=True, exist_ok=True)
        place.rename(made)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(place, ignore_errors=True)
        if not made.exists():  # another test may have made it
            raise OSError(f"Debian's packages cannot be unpacked: {error}") from error
