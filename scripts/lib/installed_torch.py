"""A release of PyTorch in a virtual environment of its own, as small as it can be imported."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gdbext.errors import LayoutError

SMALL = ("typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "filelock", "setuptools")
"""What ``import torch`` wants of one release or another; the libraries of CUDA are 3 GB more."""
_SYSTEM = re.compile(r"@+(GLIBC|GLIBCXX|CXXABI|GCC|GOMP|OMP|OACC)_")
_OF_CUDA = ("cu", "nv", "nccl", "__cuda", "__nv")
_NO_DEVICE = 100
"""cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE (cuda_runtime_api.h, cuda.h)."""


def install(version: str, python: str, folder: Path, index: str | None = None) -> str:
    """Make the environment in ``folder``; the path of its interpreter. Raises LayoutError."""
    _run([python, "-m", "venv", str(folder)])
    executable = str(folder / "bin" / "python")
    pip = [executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile", "--only-binary", ":all:"]
    _run([*pip, *SMALL])
    _run([*pip, "--no-deps", *(["--index-url", index] if index else []), f"torch=={version}"])
    stand_in_for_cuda(package(folder) / "lib")
    _run([executable, "-W", "ignore", "-c", "import torch"])
    return executable


def package(folder: Path) -> Path:
    """The installed package torch of the environment in ``folder``."""
    return next(folder.glob("lib/python*/site-packages/torch"))


def stand_in_for_cuda(folder: Path) -> None:
    """Beside the libraries of a wheel for CUDA, put those that they need: every function says "no device"."""
    libraries = sorted(folder.glob("*.so*"))
    absent = {name for library in libraries for name in _needed(library)} - {each.name for each in libraries}
    absent = {name for name in absent if name.startswith(("libcu", "libnv", "libnccl"))}
    if not absent:
        return
    defined = {_plain(name) for library in libraries for name in _dynamic(library, "--defined-only")}
    wanted = {name for library in libraries for name in _dynamic(library, "--undefined-only")}
    versions = {
        _plain(name): name.rpartition("@")[2] if "@" in name else ""
        for name in wanted
        if not _SYSTEM.search(name) and name.startswith(_OF_CUDA)
    }
    functions = sorted(versions.keys() - defined)
    library = _build(folder, {name: versions[name] for name in functions})
    for name in absent:
        (folder / name).symlink_to(library.name)


def _build(folder: Path, functions: Mapping[str, str]) -> Path:
    """A library with these functions, each of its version."""
    labels = [f".globl {name}\n.type {name}, @function\n{name}:" for name in functions]
    answer = [f"mov ${_NO_DEVICE}, %eax", "ret", '.section .note.GNU-stack,"",@progbits', ""]
    source, script, library = (folder / f"libno_device.{suffix}" for suffix in ("s", "map", "so"))
    source.write_text("\n".join([".text", *labels, *answer]))
    members = {version: [name for name in functions if functions[name] == version] for version in functions.values()}
    script.write_text("".join(_node(version, names) for version, names in members.items() if version))
    _run(["gcc", "-shared", "-nostdlib", f"-Wl,--version-script={script}", "-o", str(library), str(source)])
    return library


def _node(version: str, names: Sequence[str]) -> str:
    """A version of a linker's version script."""
    return f"{version} {{ {'; '.join(names)}; }};\n"


def _needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", _run(["readelf", "-dW", str(library)]))


def _dynamic(library: Path, which: str) -> list[str]:
    """The names of a library's dynamic symbols, with their versions."""
    return [line.split()[-1] for line in _run(["nm", "-D", which, str(library)]).splitlines() if line.strip()]


def _plain(name: str) -> str:
    return name.partition("@")[0]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        words = " ".join(command[:4])
        raise LayoutError(f"{words} failed: {last}", why="see the message", help="try the command alone")
    return done.stdout
