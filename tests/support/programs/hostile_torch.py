"""What uid nobody can lay out for root to find: a process that maps a libtorch_cpu.so, beside it headers of nobody's.

The headers are the installed torch's, save one, whose constructor writes down as whom it runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.programs.harness import ready

NOBODY = 65534
_PROGRAM = """
import mmap, os, sys
kept = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
print("ready", flush=True)
sys.stdin.read()
"""
_HEADER = "c10/core/DispatchKey.h"
_TRAP = """
#include <fstream>
#include <unistd.h>
static struct Trap {{
  Trap() {{ std::ofstream("{witness}", std::ios::app) << geteuid() << "\\n"; }}
}} trap;
"""


class HostileTorch:
    """``folder`` is nobody's; ``witness`` gets a line with the uid for each run of the code in its headers."""

    def __init__(self, folder: Path, torch: Path) -> None:
        self.folder = folder
        self.package = folder / "torch"
        self.witness = folder / "witness"
        self._torch = torch
        include, genuine = self.package / "include", torch / "include"
        include.mkdir(parents=True)
        (self.package / "version.py").write_text("__version__ = '1.0.0'\n")
        for entry in genuine.iterdir():
            if entry.name != "c10":
                (include / entry.name).symlink_to(entry)
        shutil.copytree(genuine / "c10", include / "c10", copy_function=os.symlink)
        self._write_header((genuine / _HEADER).read_text() + _TRAP.format(witness=self.witness))

    def _write_header(self, text: str) -> None:
        header = self.package / "include" / _HEADER
        header.unlink()
        header.write_text(text)

    def include_file(self, path: Path) -> None:
        """A header of nobody's names a file that nobody may read."""
        self._write_header(f'#include "{path}"\n')

    def link_lib(self) -> Path:
        """lib is a link to the genuine libraries, and the library to be mapped lies in another folder."""
        (self.package / "lib").symlink_to(self._torch / "lib")
        return self._library(self.package / "lib2")

    def own_lib(self) -> Path:
        """lib is nobody's, too: the genuine libc10.so and a library to be mapped."""
        library = self._library(self.package / "lib")
        shutil.copy(self._torch / "lib/libc10.so", library.parent)
        return library

    @staticmethod
    def _library(folder: Path) -> Path:
        folder.mkdir()
        source, library = folder / "empty.c", folder / "libtorch_cpu.so"
        source.touch()
        subprocess.run(["gcc", "-shared", "-Wl,--build-id", "-o", library, source], check=True)
        return library

    @contextmanager
    def process(self, library: Path) -> Iterator[int]:
        """The pid of a process of nobody's that has mapped the library."""
        subprocess.run(["chown", "-hR", str(NOBODY), self.folder], check=True)
        command = ["/usr/bin/python3", "-I", "-S", "-c", _PROGRAM, str(library)]
        with ready(command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/") as running:
            yield running.pid


@contextmanager
def hostile_torch(torch: Path) -> Iterator[HostileTorch]:
    folder = Path(tempfile.mkdtemp(prefix="gdbext-nobody-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield HostileTorch(folder, torch)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def why_not() -> str:
    """Why no process of another user can be attacked with here, "" where it can."""
    if os.geteuid() != 0:
        return "only root can look at a process of another user"
    if not os.access("/usr/bin/python3", os.X_OK) or shutil.which("g++") is None:
        return "needs a Python that everybody may run, /usr/bin/python3, and g++"
    return ""
