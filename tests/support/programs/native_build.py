"""Builds the inferiors' native helpers (tests/inferiors/native/*.cpp) with g++, once per content, outside the tree."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "inferiors" / "native"
FLAGS = {
    "debug_dispatch": ["-O0", "-g"],
    "dispatch_paths_o3": ["-O3", "-flto", "-fno-omit-frame-pointer"],
    "made_up_device": ["-O2", "-Wl,-soname,libcuda.so.1"],
    "openmp_limit": ["-O2", "-fopenmp"],
}
"""Per library; all others are built as a user's extension is: -O2, no debug information."""

USE = re.compile(r"""native_library\.(?:load(?:_operators)?|path)\(["'](\w+)["']""")


def cache_folder() -> Path:
    """Where built libraries, and all else that is kept, stay between runs; GDBEXT_TEST_CACHE overrides it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdbext-tests"
    return Path(os.environ.get("GDBEXT_TEST_CACHE") or cache)


def build_for(script: Path) -> str:
    return os.pathsep.join(str(build(name).parent) for name in sorted(set(USE.findall(script.read_text()))))


def build(name: str) -> Path:
    """Build one library, or find it built; returns its path. Raises with the compiler's words."""
    source = SOURCES / f"{name}.cpp"
    target = cache_folder() / f"{name}-{_fingerprint(source)}" / f"lib{name}.so"
    if not target.exists():
        made(target, lambda partial: _command(source, partial))
        folders = sorted(cache_folder().glob(f"{name}-*"), key=lambda entry: entry.stat().st_mtime)
        for folder in folders[:-4]:  # one that another run uses right now is among the youngest
            if folder != target.parent:
                shutil.rmtree(folder, ignore_errors=True)
    return target


def made(target: Path, command: Callable[[Path], list[str]]) -> Path:
    """Compile what is not there yet, once, whoever else wants it now; ``command`` gets the name of the output."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            partial = target.with_suffix(f".{os.getpid()}")
            words = command(partial)
            done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode != 0:
                raise AssertionError(f"{target.name} does not compile\n$ {' '.join(words)}\n{done.stderr[:6000]}")
            partial.replace(target)
    return target


def _command(source: Path, target: Path) -> list[str]:
    command = ["g++", "-std=c++20", "-fPIC", "-shared", "-pthread", *FLAGS.get(source.stem, ["-O2"])]
    command += [str(source), "-o", str(target)]
    if "#include <torch" not in source.read_text() and "#include <ATen" not in source.read_text():
        return command
    torch = torch_folder()
    command += [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
    return [*command, f"-L{torch}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}/lib"]


def torch_folder() -> Path:
    """Found without importing torch (2 s)."""
    from importlib.util import find_spec

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise AssertionError(f"torch is not installed for {sys.executable}; run scripts/test")
    return Path(spec.origin).parent


def _fingerprint(source: Path) -> str:
    """Changes with the source, the shared headers, the command, the compiler and the wheel, but not with the folders of
    the checkout and of the wheel: a clone of the same tree finds what another one has built. (Who loads such a library
    has imported torch, so its own libtorch is what the loader takes.)"""
    torch = str(torch_folder())
    command = [word.removeprefix(f"{SOURCES}/").replace(torch, "TORCH") for word in _command(source, Path("out"))]
    digest = hashlib.sha256(repr(command).encode())
    digest.update(subprocess.run(["g++", "-v"], capture_output=True, check=True).stderr)
    digest.update((torch_folder() / "version.py").read_bytes())
    for file in (source, *sorted(SOURCES.glob("*.h"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
