"""Runs the C or C++ compiler over a translation unit that names the wanted types."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gdbext.errors import LayoutError
from gdbext.layouts.measure.types.wants import FILE, Wants

_ERROR = re.compile(rf"^{FILE}:(\d+):(?:\d+:)? *(?:fatal )?error", re.MULTILINE)
_FROM = re.compile(rf"^ *{FILE}:(\d+):(?:\d+:)? +required from here", re.MULTILINE)
_ROUNDS = 6


@dataclass(frozen=True)
class Compiled:
    """A shared library with debug information, and the wants that it lacks, by number."""

    library: Path
    absent: frozenset[int]
    compiler: str


def find_compiler(candidates: Sequence[str]) -> str:
    """The first of ``candidates`` on PATH. Raises LayoutError."""
    for name in candidates:
        path = shutil.which(name)
        if path:
            return path
    raise LayoutError(
        f"no compiler found ({', '.join(candidates)})",
        why="a layout is measured by compiling the installed headers",
        help="install g++ (apt-get install g++), or generate the layout on another machine with the same "
        "torch: scripts/gen_layouts.py --torch /path/to/site-packages/torch",
    )


def compiler_version(compiler: str) -> str:
    """First line of ``compiler --version``."""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or ["unknown"])[0]


def build(wants: Wants, compiler: str, flags: Sequence[str], folder: Path) -> Compiled:
    """Compile ``wants`` in ``folder``, without those that this version of the headers lacks. Raises LayoutError.

    Preprocessing takes a second and tells which names no header has; a compilation, half a minute for torch, is
    repeated only where a name exists and does not mean what it should.
    """
    source = folder / ("wants.cpp" if wants.cplusplus else "wants.c")
    library = folder / "wants.so"
    source.write_text(wants.source(()))
    preprocess = [compiler, *flags, "-E", "-dD", "-w", str(source)]
    headers = subprocess.run(preprocess, capture_output=True, check=False)
    if headers.returncode != 0:
        raise _failure(headers.stderr.decode(errors="replace"), preprocess)
    absent = wants.unheard_of(headers.stdout.rpartition(b'"%s"' % FILE.encode())[0])
    command = [compiler, *flags, "-g", "-O0", "-fPIC", "-shared", "-w", "-gz=none", "-fdiagnostics-color=never",
               str(source), "-o", str(library)]  # fmt: skip
    for _ in range(_ROUNDS):
        source.write_text(wants.source(absent))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Compiled(library, frozenset(absent), compiler_version(compiler))
        bad = {int(n) - 1 for pattern in (_ERROR, _FROM) for n in pattern.findall(done.stderr)} - absent
        if not bad:
            break
        absent |= bad
    raise _failure(done.stderr, command)


def _failure(messages: str, command: Sequence[str]) -> LayoutError:
    first = next((line for line in messages.splitlines() if "error" in line), messages) or "no message"
    return LayoutError(
        f"the headers do not compile: {first[:300]}",
        why="the compiler may be too old for this torch, or headers are missing",
        help=f"try by hand: {' '.join(command)}",
    )
