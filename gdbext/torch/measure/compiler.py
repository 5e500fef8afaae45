"""Runs the C or C++ compiler over a translation unit that names the wanted types.

Whatever interrupts us ends the programs that measuring runs, with all that they have started.

Asks PyTorch itself about its dispatch keys, by a small program on the installed libc10.so.

Key names (``c10::toString``), the functionality offset and mask table, table indices and the key sets of alias
keys are results of functions, not of types, so DWARF does not hold them. The program is compiled against the
same headers, linked against the libc10.so beside them, and run in a process of its own: never in the target.
Source: c10/core/DispatchKey.h, DispatchKeySet.h, ScalarType.h.
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
    """Wait for a program whose temporary files go into ``folder``. Raises OSError, subprocess.TimeoutExpired.

    g++ is a driver: to kill it alone would leave the compiler proper behind, for minutes. It stays in our process
    group, which is ended as a whole where somebody started us as a session of our own (child.py).
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
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
        return [int(word) for word in proc_files.text(f"/proc/{pid}/task/{pid}/children").split()]
    except OSError:
        return []


def ended_by_signals() -> contextlib.AbstractContextManager[None]:
    """SIGTERM and SIGHUP end us as Ctrl+C does: what runs is ended and folders are removed on the way."""
    return signals_handled((signal.SIGTERM, signal.SIGHUP), lambda received, _frame: sys.exit(128 + received))


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
        "torch: scripts/dispatch measure /path/to/site-packages/torch",
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
    command = [
        unit.compiler,
        *unit.flags,
        "-g",
        "-O0",
        "-fPIC",
        "-shared",
        "-w",
        "-gz=none",
        "-fdiagnostics-color=never",
        str(unit.source),
        "-o",
        str(library),
    ]
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


_PROGRAM = r"""
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <cstdio>
#include <string>
using namespace c10;
using ull = unsigned long long;
static void quoted(const char* text) { std::printf("\"%s\"", text); }
// A key of a table slot, no marker and no functionality that needs a backend.
static bool isReal(int k) {
  auto key = (DispatchKey)k;
  return k == 0 || (k < (int)DispatchKey::EndOfFunctionalityKeys && !isPerBackendFunctionalityKey(key)) ||
      (k > (int)DispatchKey::EndOfFunctionalityKeys && toBackendComponent(key) != BackendComponent::InvalidBit);
}
// Until 2.6 getRuntimeDispatchKeySet forgets FuncTorchBatchedDecomposition, which runtimeDispatchKeySetHas knows.
static ull runtimeKeys(DispatchKey alias, int last_runtime) {
  auto bits = (ull)getRuntimeDispatchKeySet(alias).raw_repr();
  if (bits) return bits;
  for (int k = 1; k <= last_runtime; k++) {
    auto key = (DispatchKey)k;
    if (isReal(k) && runtimeDispatchKeySetHas(alias, key)) bits |= (ull)DispatchKeySet(key).raw_repr();
  }
  return bits;
}
int main() {
  const int last_runtime = (int)DispatchKey::EndOfRuntimeBackendKeys;
  const int last = (int)DispatchKey::EndOfAliasKeys;
  std::printf("{\"key_names\": [");
  for (int k = 0; k <= last; k++) { if (k) std::printf(", "); quoted(toString((DispatchKey)k)); }
  std::printf("], \"backend_names\": [");
  const int last_backend = (int)BackendComponent::EndOfBackendKeys;
  for (int b = 0; b <= last_backend; b++) { if (b) std::printf(", "); quoted(toString((BackendComponent)b)); }
  std::printf("], \"offsets_and_masks\": [");
  auto table = initializeFunctionalityOffsetsAndMasks();
  for (size_t i = 0; i < table.size(); i++)
    std::printf("%s[%u, %u]", i ? ", " : "", (unsigned)table[i].offset, (unsigned)table[i].mask);
  std::printf("], \"table_index\": [");
  for (int k = 0; k <= last_runtime; k++) {
    int index = isReal(k) ? (int)getDispatchTableIndexForDispatchKey((DispatchKey)k) : -1;
    std::printf("%s%d", k ? ", " : "", index);
  }
  std::printf("], \"runtime_keysets\": {");
  for (int k = last_runtime + 1; k <= last; k++) {
    auto key = (DispatchKey)k;
    std::printf("%s\"%s\": %llu", k > last_runtime + 1 ? ", " : "", toString(key), runtimeKeys(key, last_runtime));
  }
  std::printf("}, \"backend_keys\": [");
  bool first = true;
  for (int k = 0; k <= last_runtime; k++) {
    if (isBackendDispatchKey((DispatchKey)k)) { std::printf("%s%d", first ? "" : ", ", k); first = false; }
  }
  std::printf("], \"backends_of_autograd\": {");
  first = true;
  for (int k = 0; k <= last_runtime; k++) {
    auto bits = getBackendKeySetFromAutograd((DispatchKey)k).raw_repr();
    if (bits) { std::printf("%s\"%d\": %llu", first ? "" : ", ", k, (ull)bits); first = false; }
  }
  std::printf("}, \"autograd_of_backend\": [");
  for (int b = 1; b <= last_backend; b++)
    std::printf("%s%llu", b > 1 ? ", " : "", (ull)getAutogradRelatedKeySetFromBackend((BackendComponent)b).raw_repr());
  std::printf("], \"autocast_of_backend\": [");
  for (int b = 1; b <= last_backend; b++)
    std::printf("%s%llu", b > 1 ? ", " : "", (ull)getAutocastRelatedKeySetFromBackend((BackendComponent)b).raw_repr());
  std::printf("], \"scalar_types\": [");
  for (int t = 0; t < (int)ScalarType::NumOptions; t++) {
    auto type = (ScalarType)t;
    int size = type == ScalarType::Undefined ? 0 : (int)elementSize(type);
    std::printf("%s[\"%s\", %d]", t ? ", " : "", toString(type), size);
  }
  std::printf("]}\n");
}
"""

_SECONDS = 60


def ask(torch: Path, compiler: str, flags: Sequence[str], folder: Path) -> dict[str, Any]:
    """The "dispatch" section of a torch layout. Raises LayoutError when the library cannot be linked or run."""
    check_owner(torch / "lib" / "libc10.so")
    source, program = folder / "facts.cpp", folder / "facts"
    source.write_text(_PROGRAM)
    library = torch / "lib"
    command = [
        compiler,
        *flags,
        "-O0",
        "-w",
        str(source),
        "-o",
        str(program),
        f"-L{library}",
        "-lc10",
        f"-Wl,-rpath,{library}",
    ]
    _run(command, folder)
    try:
        answer = json.loads(_run([str(program)], folder))
    except ValueError as error:
        raise LayoutError(f"libc10.so gave an answer that cannot be read: {error}") from error
    if not isinstance(answer, dict):
        raise LayoutError("libc10.so gave an answer that cannot be read")
    return answer


def check_owner(library: Path) -> None:
    """Refuse to run a library that somebody else may have put there. Raises LayoutError.

    A privileged user who looks at another user's process must not execute that user's files.
    """
    try:
        places = [each.stat() for each in (library, library.parent)]
    except OSError as error:
        raise LayoutError(f"cannot look at {library}: {error.strerror}") from error
    if any(place.st_uid not in (0, os.geteuid()) or place.st_mode & 0o002 for place in places):
        raise LayoutError(
            f"{library} belongs to another user",
            why="generating a layout runs a program linked to that library, with your rights",
            help="run as that user, or generate it from an installation of your own with the same torch: "
            "scripts/dispatch measure /path/to/site-packages/torch",
        )


def _run(command: Sequence[str], folder: Path) -> str:
    try:
        done = run(command, folder, _SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LayoutError(f"{command[0]} failed: {error}") from error
    output, errors = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
    if done.returncode != 0:
        raise LayoutError(
            f"{command[0]} failed: {(errors or output).strip()[:300] or f'exit status {done.returncode}'}",
            why="the program that asks libc10.so for its key names could not be built or run here",
        )
    return output
