"""Versions of what a process has loaded, read from its files: none of its code runs.

Of glibc and NCCL the string in the library, of Python packages the name of the dist-info folder beside their files
(specification "Recording installed projects" of packaging.python.org).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.targets.host_files import HostFiles

_LIBC_VERSION = re.compile(rb"GNU C Library[^\n]{0,80}? version (\d+\.\d+)")
_NCCL_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
"""VERSION_STRING of NCCL's src/init.cc: ``NCCL version 2.27.3+cuda12.9``."""
_LINE = 160  # bytes that hold a banner's first line
_MOST_TEXTS = 8  # texts of a library that may begin as its banner does, as formats of messages do
_SITE = re.compile(r"(/.*/(?:site|dist)-packages)/")
_EXTENSION = re.compile(r"/(?:site|dist)-packages/|\.(?:cpython-[^/]+|abi3)\.so$")
_HIGHEST = 6  # folders above a module in which its package's metadata is looked for
_METADATA = re.compile(r"(.+?)-(\d[^-]*)(?:-py\d[^-]*)?\.(?:dist|egg)-info")


def without_unknown(versions: Mapping[str, str | None]) -> dict[str, str | None]:
    """The table without the packages whose version a report calls "unknown"."""
    return {package: text for package, text in versions.items() if text != "unknown"}


class PackageVersions:
    """``paths``: of Python files that are loaded. ``known``: versions that are known already, None for what is not
    there."""

    def __init__(
        self, modules: ModuleTable, files: HostFiles, paths: Iterable[str], known: Mapping[str, str | None]
    ) -> None:
        self._modules = modules
        self._files = files
        self._paths = paths
        self._known = without_unknown(known)

    def version(self, package: str) -> str | None:
        """The version of a package; None where it cannot be known."""
        if package not in self._known:
            self._known[package] = self._read(package)
        return self._known[package]

    def _read(self, package: str) -> str | None:
        if package == "glibc":
            module = self._modules.named("libc.so.6")
            return libc_version(module) if module else None
        if package == "nccl":
            return nccl_version(self._modules)
        wanted, versions = _normal(package), set()
        for name in (name for folder in self._folders() for name in self._files.foreign_names(folder)):
            info = _METADATA.fullmatch(name)
            if info and _normal(info.group(1)) == wanted:
                versions.add(info.group(2))
        return versions.pop() if len(versions) == 1 else None

    def _folders(self) -> list[str]:
        """Folders of packages that are loaded from: site-packages, else those above the file (pip install --target)."""
        paths = [*(module.path for module in self._modules.modules if _EXTENSION.search(module.path)), *self._paths]
        folders: dict[str, None] = {}
        for path in paths:
            site, parts = _SITE.match(path), path.split("/")
            lengths = range(len(parts) - 1, max(len(parts) - 1 - _HIGHEST, 1), -1)
            nearest = [site.group(1)] if site else ["/".join(parts[:length]) for length in lengths]
            folders.update(dict.fromkeys(nearest))
        return list(folders)


def _normal(package: str) -> str:
    """Names of packages that differ in these characters only are equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def libc_version(module: Module) -> str | None:
    """glibc's own banner ("GNU C Library … version 2.36."), a string in its .rodata (csu/version.c)."""
    return _banner(module, b"GNU C Library", _LIBC_VERSION)


def nccl_version(modules: ModuleTable) -> str | None:
    """The version of libnccl, or of a libtorch_cuda that contains it: ``2.27.5``."""
    libraries = [each for each in modules.modules if each.name.startswith(("libnccl.so", "libtorch_cuda.so"))]
    libraries.sort(key=lambda each: not each.name.startswith("libnccl"))
    return next(filter(None, (_banner(module, b"NCCL version ", _NCCL_VERSION) for module in libraries)), None)


def _banner(module: Module, beginning: bytes, pattern: re.Pattern[bytes]) -> str | None:
    """The version in the first text of the library's constants that fits the pattern."""
    image = module.image
    section = image.sections.get(".rodata") if image else None
    if not image or not section:
        return None
    address = image.find(beginning, section.address, section.address + section.size)
    for _ in range(_MOST_TEXTS):
        match = pattern.match(image.read(address, _LINE)) if address is not None else None
        if match or address is None:
            return match.group(1).decode() if match else None
        address = image.find(beginning, address + 1, section.address + section.size)
    return None
