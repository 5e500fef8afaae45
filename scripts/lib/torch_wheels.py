"""The released wheels of PyTorch: which there are, and as much of one as its layout is measured on."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO

from gdbext.engine.formats.elf_header import PT_NOTE, parse_header, parse_segments
from gdbext.errors import LayoutError
from gdbext.torch.measure.generate import LIBRARIES

OLDEST = (2, 0)
"""Wheels from 2.0.0 on."""
_PYTHON = "3.11"
"""There is a wheel for it of each release; the headers are the same in all of them."""
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
_WHOLE = re.compile(r"torch/(include/.*|version\.py|lib/(libc10|libgomp)[^/]*)|torch-[^/]*\.dist-info/WHEEL")


def released() -> list[str]:
    """The versions on the package index, oldest first. Raises LayoutError."""
    text = _pip("index", "versions", "torch")
    found = re.search(r"^Available versions: (.*)$", text, re.MULTILINE)
    versions = [each.strip() for each in found.group(1).split(",")] if found else []
    return sorted(
        (each for each in versions if re.fullmatch(r"[\d.]+", each) and _numbers(each) >= OLDEST), key=_numbers
    )


def download(version: str, folder: Path) -> Path:
    """The index's wheel of that release, 0.5 to 0.9 GB, without its dependencies, in ``folder``. Raises LayoutError.

    A wheel for the CPU, which a configured folder may have besides, is another build.
    """
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    _pip(
        "download",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--only-binary",
        ":all:",
        "--implementation",
        "cp",
        "--python-version",
        _PYTHON,
        *platforms,
        "--dest",
        str(folder),
        f"torch=={version},!={version}+cpu",
    )
    return next(folder.glob("torch-*.whl"))


def fetch(version: str, folder: Path) -> Path:
    """The folder torch of that release, below ``folder``: headers, libc10, the heads of the others. Raises LayoutError.

    The wheel is removed as soon as it is unpacked.
    """
    wheel = download(version, folder)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if _WHOLE.fullmatch(member.filename):
                archive.extract(member, folder)
            elif member.filename in {f"torch/lib/{name}" for name in LIBRARIES}:
                path = folder / member.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as stream, path.open("wb") as file:
                    _copy_notes(stream, file)
    wheel.unlink()
    return folder / "torch"


def _copy_notes(library: IO[bytes], file: IO[bytes]) -> None:
    """ELF header, program headers and notes, each where it was: all that the build-id of a library takes."""
    head = library.read(1 << 12)
    file.write(head)
    notes = [each for each in parse_segments(head, parse_header(head)) if each.type == PT_NOTE]
    for segment in sorted(notes, key=lambda each: each.offset):
        library.seek(segment.offset)
        file.seek(segment.offset)
        file.write(library.read(segment.filesz))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _pip(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LayoutError(f"pip {words[0]} failed: {last}", why="the package index cannot be reached", help="see pip")
    return done.stdout
