"""Asks PyTorch itself about its dispatch keys, by a small program on the installed libc10.so.

Key names (``c10::toString``), the functionality offset and mask table, table indices and the key sets of alias
keys are results of functions, not of types, so DWARF does not hold them. The program is compiled against the
same headers, linked against the libc10.so beside them, and run in a process of its own: never in the target.
Source: c10/core/DispatchKey.h, DispatchKeySet.h, ScalarType.h.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdbext.engine.layouts.measure import compiler
from gdbext.errors import LayoutError

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
    command = [compiler, *flags, "-O0", "-w", str(source), "-o", str(program), f"-L{library}", "-lc10",
               f"-Wl,-rpath,{library}"]  # fmt: skip
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
            "scripts/gen_layouts.py --torch /path/to/site-packages/torch",
        )


def _run(command: Sequence[str], folder: Path) -> str:
    try:
        done = compiler.run(command, folder, _SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LayoutError(f"{command[0]} failed: {error}") from error
    output, errors = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
    if done.returncode != 0:
        raise LayoutError(
            f"{command[0]} failed: {(errors or output).strip()[:300] or f'exit status {done.returncode}'}",
            why="the program that asks libc10.so for its key names could not be built or run here",
        )
    return output
