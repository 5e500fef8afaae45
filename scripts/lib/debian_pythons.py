#!/usr/bin/env python3
"""Unpack the CPythons of Debian's newer suites into a folder, for the tests; nothing of the system changes.

    debian_pythons.py FOLDER PATCHELF 3.14 3.15

Each becomes FOLDER/3.14.10 with bin/ and lib/, its own C library and loader among them; the tests look for it there
(tests/support/installed/pythons.py). The packages come from the mirror that apt is configured with, are checked by its
keys, and are loaded once. There are none of free-threaded builds.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SUITES = "testing unstable"
ORIGIN = "Debian"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def main(argv: Sequence[str]) -> int:
    """Exit status 0 when all are there, 1 when one cannot be had."""
    folder, patchelf, versions = Path(argv[0]), argv[1], argv[2:]
    wanted = [version for version in versions if not any(folder.glob(f"{version}.*[0-9]"))]
    if not wanted:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as name:
        place = Path(name)
        options = _own_apt(place)
        _run("apt-get", *options, "-q", "update")
        for version in wanted:
            root = place / f"root-{version}"
            _unpack(options, place / "archives", f"python{version}", root)
            _assemble(root, version, patchelf, place / version)
            number = _version_of(place / version / "bin" / f"python{version}")
            with contextlib.suppress(OSError):  # another run was faster
                (place / version).rename(folder / number)
            _move(folder / number, version, patchelf)
            print(f"Python {number}: {folder / number}")
    return 0


def _own_apt(place: Path) -> list[str]:
    """Options by which apt knows the newer suites of the configured mirror, in folders of its own and with nothing
    installed: so that it loads the C library, too."""
    for name in ("lists/partial", "archives/partial", "sources"):
        (place / name).mkdir(parents=True)
    (place / "status").touch()
    source = f"Types: deb\nURIs: {_mirror()}\nSuites: {SUITES}\nComponents: main\n"
    source += f"Signed-By: {KEYS}\n" if KEYS.exists() else ""
    (place / "sources" / "newer.sources").write_text(source)
    settings = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": place / "sources",
        "Dir::State::Lists": place / "lists",
        "Dir::State::status": place / "status",
        "Dir::Cache": place,
        "Dir::Cache::Archives": place / "archives",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _mirror() -> str:
    """The address of Debian's main archive as this machine has it."""
    form = "$(ORIGIN)|$(REPO_URI)|$(SUITE)"
    text = _run("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    if not text.strip():  # a container, without lists
        _run("apt-get", "-q", "update")
        text = _run("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    for line in text.splitlines():
        origin, uri, suite = line.split("|")
        if origin == ORIGIN and "security" not in suite and "updates" not in suite:
            return uri
    raise SystemExit("apt has no archive of Debian's")


def _unpack(options: Sequence[str], archives: Path, package: str, root: Path) -> None:
    """The package with all that it needs, in ``root``."""
    _run("apt-get", *options, "-q", "-y", "--no-install-recommends", "--download-only", "install", package)
    root.mkdir()
    for archive in sorted(archives.glob("*.deb")):
        _run("dpkg-deb", "-x", str(archive), str(root))
        archive.unlink()


def _assemble(root: Path, version: str, patchelf: str, place: Path) -> None:
    """bin/, lib/pythonX.Y and the libraries, the loader beside them."""
    (place / "bin").mkdir(parents=True)
    shutil.copy2(root / "usr/bin" / f"python{version}", place / "bin")
    shutil.copytree(
        root / "usr/lib" / f"python{version}",
        place / "lib" / f"python{version}",
        symlinks=False,
        ignore=shutil.ignore_patterns("sitecustomize.py", "EXTERNALLY-MANAGED", "__pycache__"),
        ignore_dangling_symlinks=True,
    )
    for library in next((root / "usr/lib").glob("*-linux-gnu")).glob("*.so*"):
        shutil.copy2(library, place / "lib" / library.name)
    _move(place, version, patchelf)


def _move(place: Path, version: str, patchelf: str) -> None:
    """Have the program name the loader and the libraries where they are now."""
    loader = next((place / "lib").glob("ld-linux*.so.*"))
    program = place / "bin" / f"python{version}"
    _run(patchelf, "--set-interpreter", str(loader), "--force-rpath", "--set-rpath", str(place / "lib"), str(program))


def _version_of(program: Path) -> str:
    return _run(str(program), "-c", "import ssl, sqlite3, sys; print('%d.%d.%d' % sys.version_info[:3])").strip()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} {command[-1]}: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
