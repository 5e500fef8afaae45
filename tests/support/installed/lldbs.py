"""The LLDBs of this machine: $GDBEXT_TEST_LLDBS (paths, separated by colons), else lldb and lldb-VERSION on PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.programs.native_build import cache_folder


@cache
def usable() -> dict[str, str]:
    """Name (lldb-19) to executable, oldest first; those whose Python does not load are no use to anybody."""
    return {Path(path).name: path for path in _candidates() if _loads(path)}


def _candidates() -> list[str]:
    named = os.environ.get("GDBEXT_TEST_LLDBS")
    if named:
        return [path for path in named.split(":") if os.access(path, os.X_OK)]
    paths = [path for folder in os.environ.get("PATH", "").split(":") if folder for path in Path(folder).glob("lldb-*")]
    versioned = {path.name: path for path in reversed(paths) if re.fullmatch(r"lldb-\d+", path.name)}
    found = [str(versioned[name]) for name in sorted(versioned, key=lambda name: int(name[5:]))]
    plain = shutil.which("lldb")
    if plain is not None and os.path.realpath(plain) not in {os.path.realpath(path) for path in found}:
        found.append(plain)
    return found


def _loads(path: str) -> bool:
    ask = "script import lldb; print('loads', lldb.SBDebugger.GetVersionString().split()[2])"
    words = [path, "--no-lldbinit", "-b", "-o", ask]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return re.search(r"^loads \d", done.stdout, re.MULTILINE) is not None


def every() -> dict[str, str]:
    """The same, and those that scripts/test has unpacked."""
    more = {path.name: str(path) for path in unpacked().glob("lldb-*") if re.fullmatch(r"lldb-\d+", path.name)}
    return usable() | {name: path for name, path in sorted(more.items()) if _loads(path)}


def unpacked() -> Path:
    return cache_folder() / "lldbs"


def kept_index() -> Path:
    """The folder of LLDB's own index, which is ours alone (gdbext/cache.py)."""
    folder = cache_folder() / "lldb-index"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def reading_little() -> list[str]:
    """Options for an LLDB on torch: it reads the symbols that are asked for, and keeps its index (2.8 s, not 4.3)."""
    index = "settings set symbols.lldb-index-cache"
    settings = [f"{index}-path '{kept_index()}'", f"{index}-max-byte-size {1 << 29}"]
    settings += ["settings set target.preload-symbols false", "settings set symbols.enable-lldb-index-cache true"]
    settings += ["settings set plugin.process.gdb-remote.packet-timeout 20"]  # a busy machine takes more than 5 s
    return [word for line in settings for word in ("-O", line)]


def batch(name: str, *commands: str) -> list[str]:
    words = [word for command in commands for word in ("-o", command)]
    return [executable(name), "--no-lldbinit", "-b", *reading_little(), *words]


def missing() -> str:
    """Why no test with LLDB can run here, "" when it can."""
    return "" if usable() else "no lldb with a Python that loads is installed"


def parameters(*more: Any) -> list[Any]:
    """A parameter for each LLDB: its name. It fails where there is none; all but the first are of the second tier."""
    return _each([*usable()] or ["lldb"], *more)


def _each(values: list[str], *marks: Any) -> list[Any]:
    kinds = [(pytest.mark.lldb, *marks), *[(pytest.mark.lldb, *marks, pytest.mark.extended)] * len(values)]
    return [pytest.param(value, marks=kind, id=Path(value).name) for value, kind in zip(values, kinds)]


def executable(name: str) -> str:
    return usable()[name]


def adapters() -> list[Any]:
    """A parameter for each debug adapter (lldb-dap, once lldb-vscode): its path. It fails where there is none."""
    beside = {Path(path).parent for path in usable().values()}
    paths = [path for folder in (*beside, unpacked()) if folder.is_dir() for path in folder.iterdir()]
    found = {path.name: str(path) for path in paths if re.fullmatch(r"lldb-(dap|vscode)(-\d+)?", path.name)}
    named = {name: path for name, path in found.items() if name[-1].isdigit()} or found
    return _each([named[name] for name in sorted(named)] or ["lldb-dap"])
