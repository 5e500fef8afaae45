"""Runs the C or C++ compiler over the wants, and a small program on the installed libc10.so, dispatch_keys.cpp.

Key names (``c10::toString``), the functionality offset and mask table, table indices and the key sets of alias keys are
results of functions, not of types, so DWARF does not hold them. The program is compiled against the same headers,
linked against the libc10.so beside them, and run in a process of its own, never in the target. Sources: DispatchKey.h,
DispatchKeySet.h and ScalarType.h of c10/core. Interrupted, we kill the programs that we run, with their descendants.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdbext.cache import find_program
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import signals_handled
from gdbext.errors import LayoutError
from gdbext.torch.measure.wants import FILE, Wants


def run(command: Sequence[str], folder: Path, timeout: float | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run a program, whose temporary files go into ``folder``, to its end. Raises OSError, subprocess.TimeoutExpired.

    g++ is a driver: to kill it alone would leave the compiler proper behind, for minutes. It stays in our process
    group, which is killed as a whole where we are a session of our own (measurement.py).
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            kill_tree(process.pid)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def kill_tree(pid: int) -> None:
    """Kill a child of ours and its descendants. It is stopped first, so that it starts nothing more meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    with contextlib.suppress(OSError):
        for child in proc_files.text(f"/proc/{pid}/task/{pid}/children").split():
            kill_tree(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def ended_by_signals() -> contextlib.AbstractContextManager[None]:
    """Have SIGTERM and SIGHUP raise SystemExit meanwhile, so that programs are killed and folders are removed."""
    return signals_handled((signal.SIGTERM, signal.SIGHUP), lambda received, _frame: sys.exit(128 + received))


_ERROR_LINE = re.compile(
    rf"^{FILE}:(\d+):(?:\d+:)? *(?:fatal )?error|^ *{FILE}:(\d+):(?:\d+:)? +required from here", re.MULTILINE
)
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
    """A shared library with debug information, the numbers of the wants that it lacks, the compiler's version."""

    library: Path
    absent: frozenset[int]
    compiler: str


def find_compiler(candidates: Sequence[str]) -> str:
    """The first of ``candidates`` on PATH. Raises LayoutError."""
    path = next(filter(None, map(find_program, candidates)), None)
    if path:
        return path
    raise LayoutError(
        f"no compiler found ({', '.join(candidates)})",
        why="a layout is measured by compiling the installed headers",
        help="install g++ (apt-get install g++), or generate the layout on another machine with the same "
        "torch: scripts/dispatch measure /path/to/site-packages/torch",
    )


def preprocess(wants: Wants, compiler: str, flags: Sequence[str], folder: Path) -> Unit:
    """Expand the headers of ``wants`` in ``folder``; that takes a second. Raises LayoutError."""
    source = folder / ("wants.cpp" if wants.cplusplus else "wants.c")
    source.write_text(wants.source(()))
    command = [compiler, *flags, "-E", "-dD", "-w", str(source)]
    done = run(command, folder)
    if done.returncode != 0:
        raise _failure(done.stderr.decode(errors="replace"), command)
    absent = wants.absent_from(done.stdout.rpartition(b'"%s"' % FILE.encode())[0])
    # The digest is of what the compiler proper reads: no macros, and folders by number, for assertions have file names.
    expanded = done.stdout
    for number, include in enumerate(flag[2:] for flag in flags if flag.startswith("-I")):
        expanded = expanded.replace(include.encode() + b"/", b"<%d>" % number)
    options = " ".join(flag for flag in flags if flag.startswith(("-D", "-std", "-f")))
    lines = (line for line in expanded.splitlines() if not line.startswith(_DIRECTIVES))
    text = (line for line in lines if line.strip() and line not in _REPEATED)
    digest = hashlib.sha256(b"\n".join([options.encode(), *text])).hexdigest()[:32]
    return Unit(wants, compiler, tuple(flags), source, frozenset(absent), digest)


def build(unit: Unit) -> Compiled:
    """Compile a unit into a shared library, without the wants that do not compile. Raises LayoutError.

    A compilation, half a minute for torch, is repeated only if a name exists and is no such type or constant.
    """
    library, absent = unit.source.with_name("wants.so"), set(unit.absent)
    options = ["-g", "-O0", "-fPIC", "-shared", "-w", "-gz=none", "-fdiagnostics-color=never"]
    command = [unit.compiler, *unit.flags, *options, str(unit.source), "-o", str(library)]
    for _ in range(6):
        unit.source.write_text(unit.wants.source(absent))
        done = run(command, unit.source.parent)
        if done.returncode == 0:
            version = subprocess.run([unit.compiler, "--version"], capture_output=True, text=True, check=False)
            return Compiled(library, frozenset(absent), (version.stdout.splitlines() or ["unknown"])[0])
        messages = done.stderr.decode(errors="replace")
        failing = {int(error or instantiation) - 1 for error, instantiation in _ERROR_LINE.findall(messages)} - absent
        if not failing:
            break
        absent |= failing
    raise _failure(messages, command)


def _failure(messages: str, command: Sequence[str]) -> LayoutError:
    """The error for a compiler that printed these ``messages``."""
    first = next((line for line in messages.splitlines() if "error" in line), messages) or "no message"
    return LayoutError(
        f"the headers do not compile: {first[:300]}",
        why="the compiler may be too old for this torch, or headers are missing",
        help=f"try by hand: {' '.join(command)}",
    )


_PROGRAM = Path(__file__).with_name("dispatch_keys.cpp").read_text()
"""Read at import, as all data is (wants.py)."""


def dispatch_section(torch: Path, compiler: str, flags: Sequence[str], folder: Path) -> dict[str, Any]:
    """The "dispatch" section of a torch layout. Raises LayoutError if the library cannot be linked or run."""
    library = torch / "lib"
    check_owner(library / "libc10.so")
    source, program = folder / "facts.cpp", folder / "facts"
    source.write_text(_PROGRAM)
    linking = [f"-L{library}", "-lc10", f"-Wl,-rpath,{library}"]
    output = b""
    for command in ([compiler, *flags, "-O0", "-w", str(source), "-o", str(program), *linking], [str(program)]):
        try:
            done = run(command, folder, 60)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LayoutError(f"{command[0]} failed: {error}") from error
        output = done.stdout
        if done.returncode != 0:
            messages = (done.stderr or output).decode(errors="replace").strip()[:300]
            raise LayoutError(
                f"{command[0]} failed: {messages or f'exit status {done.returncode}'}",
                why="the program that asks libc10.so for its key names could not be built or run here",
            )
    try:
        answer = json.loads(output.decode(errors="replace"))
    except ValueError as error:
        raise LayoutError(f"libc10.so gave an answer that cannot be read: {error}") from error
    if not isinstance(answer, dict):
        raise LayoutError("libc10.so gave an answer that cannot be read")
    return answer


def check_owner(library: Path) -> None:
    """Raise LayoutError for a library that another user may have put there, which must not run with our rights."""
    try:
        statuses = [path.stat() for path in (library, library.parent)]
    except OSError as error:
        raise LayoutError(f"cannot look at {library}: {error.strerror}") from error
    if any(status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o002 for status in statuses):
        raise LayoutError(
            f"{library} belongs to another user",
            why="generating a layout runs a program linked to that library, with your rights",
            help="run as that user, or generate it from an installation of your own with the same torch: "
            "scripts/dispatch measure /path/to/site-packages/torch",
        )
