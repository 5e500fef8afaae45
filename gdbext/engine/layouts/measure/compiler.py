"""Runs the C or C++ compiler over a translation unit that names the wanted types.

Whatever interrupts us ends the programs that measuring runs, with all that they have started.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdbext.cache import find_program
from gdbext.engine.layouts.measure.types.wants import FILE, Wants
from gdbext.errors import LayoutError


def run(command: Sequence[str], folder: Path, timeout: float | None = None) -> subprocess.CompletedProcess[bytes]:
    """Wait for a program whose temporary files go into ``folder``. Raises OSError, subprocess.TimeoutExpired.

    g++ is a driver: to kill it alone would leave the compiler proper behind, for minutes. It stays in our process
    group, which is ended as a whole where somebody started us as a session of our own (child.py).
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            end(process.pid)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def end(pid: int) -> None:
    """Kill a child of ours and its descendants. It is stopped first, so that it starts nothing more meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    for child in _children(pid):
        end(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end us as Ctrl+C does: what runs is ended and folders are removed on the way."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda received, _frame: sys.exit(128 + received)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


_ERROR = re.compile(rf"^{FILE}:(\d+):(?:\d+:)? *(?:fatal )?error", re.MULTILINE)
_FROM = re.compile(rf"^ *{FILE}:(\d+):(?:\d+:)? +required from here", re.MULTILINE)
_ROUNDS = 6
_DIRECTIVES = (b"# ", b"#define", b"#undef")
"""Directives that -E -dD leaves and that no longer matter; a pragma does."""
_REPEATED = (b"struct _object;", b"using PyObject = _object;")
"""All of python_stub.h, which wheels have twice: GCC takes files of the same text and second for one (#pragma once)."""


@dataclass(frozen=True)
class Unit:
    """A translation unit whose headers were expanded.

    ``absent`` are the wants, by number, with a name that no header has. Two units with the same ``digest`` are the same
    text to the compiler, so that their types have the same layout.
    """

    wants: Wants
    compiler: str
    flags: tuple[str, ...]
    source: Path
    absent: frozenset[int]
    digest: str


@dataclass(frozen=True)
class Compiled:
    """A shared library with debug information, and the wants that it lacks, by number."""

    library: Path
    absent: frozenset[int]
    compiler: str


def find_compiler(candidates: Sequence[str]) -> str:
    """The first of ``candidates`` on PATH. Raises LayoutError."""
    for name in candidates:
        path = find_program(name)
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


def preprocess(wants: Wants, compiler: str, flags: Sequence[str], folder: Path) -> Unit:
    """Expand the headers of ``wants`` in ``folder``; that takes a second. Raises LayoutError."""
    source = folder / ("wants.cpp" if wants.cplusplus else "wants.c")
    source.write_text(wants.source(()))
    command = [compiler, *flags, "-E", "-dD", "-w", str(source)]
    done = run(command, folder)
    if done.returncode != 0:
        raise _failure(done.stderr.decode(errors="replace"), command)
    absent = wants.unheard_of(done.stdout.rpartition(b'"%s"' % FILE.encode())[0])
    return Unit(wants, compiler, tuple(flags), source, frozenset(absent), _digest(done.stdout, flags))


def _digest(expanded: bytes, flags: Sequence[str]) -> str:
    """The digest of what the compiler proper gets to see: no macros, and folders by number, for assertions have file
    names."""
    folders = [flag[2:] for flag in flags if flag.startswith("-I")]
    for number, folder in enumerate(folders):
        expanded = expanded.replace(folder.encode() + b"/", b"<%d>" % number)
    options = [flag for flag in flags if flag.startswith(("-D", "-std", "-f"))]
    lines = (line for line in expanded.splitlines() if not line.startswith(_DIRECTIVES))
    text = (line for line in lines if line.strip() and line not in _REPEATED)
    return hashlib.sha256(b"\n".join([" ".join(options).encode(), *text])).hexdigest()[:32]


def build(unit: Unit) -> Compiled:
    """Compile a unit, without what this version of the headers lacks. Raises LayoutError.

    A compilation, half a minute for torch, is repeated only where a name exists and does not mean what it should.
    """
    library, absent = unit.source.with_name("wants.so"), set(unit.absent)
    command = [unit.compiler, *unit.flags, "-g", "-O0", "-fPIC", "-shared", "-w", "-gz=none",
               "-fdiagnostics-color=never", str(unit.source), "-o", str(library)]  # fmt: skip
    for _ in range(_ROUNDS):
        unit.source.write_text(unit.wants.source(absent))
        done = run(command, unit.source.parent)
        if done.returncode == 0:
            return Compiled(library, frozenset(absent), compiler_version(unit.compiler))
        messages = done.stderr.decode(errors="replace")
        bad = {int(n) - 1 for pattern in (_ERROR, _FROM) for n in pattern.findall(messages)} - absent
        if not bad:
            break
        absent |= bad
    raise _failure(messages, command)


def _failure(messages: str, command: Sequence[str]) -> LayoutError:
    first = next((line for line in messages.splitlines() if "error" in line), messages) or "no message"
    return LayoutError(
        f"the headers do not compile: {first[:300]}",
        why="the compiler may be too old for this torch, or headers are missing",
        help=f"try by hand: {' '.join(command)}",
    )
