"""Versions of the packages that a process has loaded, read from its files without running any code.

glibc and NCCL have a string in the library, Python packages the name of the dist-info folder beside their files
(specification "Recording installed projects" of packaging.python.org).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.targets.host_files import HostFiles

_SITE = re.compile(r"(/.*/(?:site|dist)-packages)/")
_EXTENSION = re.compile(r"/(?:site|dist)-packages/|\.(?:cpython-[^/]+|abi3)\.so$")
_METADATA = re.compile(r"(.+?)-(\d[^-]*)(?:-py\d[^-]*)?\.(?:dist|egg)-info")


def without_unknown(versions: Mapping[str, str | None]) -> dict[str, str | None]:
    """The versions by package, without those that a report gives as "unknown"."""
    return {package: text for package, text in versions.items() if text != "unknown"}


class PackageVersions:
    """Finds versions of packages by name, and caches them."""

    def __init__(
        self, modules: ModuleTable, files: HostFiles, paths: Iterable[str], known: Mapping[str, str | None]
    ) -> None:
        """``paths``: of loaded Python files. ``known``: package → version that the caller has ("unknown" is ignored),
        None for a package that the process lacks."""
        self._modules = modules
        self._files = files
        self._paths = paths
        self._versions = without_unknown(known)

    def version(self, package: str) -> str | None:
        """The version of a package; None if unknown."""
        if package not in self._versions:
            self._versions[package] = self._read(package)
        return self._versions[package]

    def _read(self, package: str) -> str | None:
        """Read the version from the library's banner or the names of metadata folders; None if these disagree."""
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
        """Folders with metadata of packages: site-packages, or those above a loaded file (pip install --target)."""
        paths = [*(module.path for module in self._modules.modules if _EXTENSION.search(module.path)), *self._paths]
        folders: dict[str, None] = {}
        for path in paths:
            site, parts = _SITE.match(path), path.split("/")
            lengths = range(len(parts) - 1, max(len(parts) - 7, 1), -1)  # at most six folders
            nearest = [site.group(1)] if site else ["/".join(parts[:length]) for length in lengths]
            folders.update(dict.fromkeys(nearest))
        return list(folders)


def _normal(package: str) -> str:
    """The normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def libc_version(module: Module) -> str | None:
    """The version in glibc's banner ("GNU C Library … version 2.36."; csu/version.c)."""
    return _banner_version(module, b"GNU C Library", re.compile(rb"GNU C Library[^\n]{0,80}? version (\d+\.\d+)"))


def nccl_version(modules: ModuleTable) -> str | None:
    """The version of libnccl, or of a libtorch_cuda that contains it: ``2.27.5`` (VERSION_STRING of src/init.cc)."""
    libraries = [module for module in modules.modules if module.name.startswith(("libnccl.so", "libtorch_cuda.so"))]
    libraries.sort(key=lambda module: not module.name.startswith("libnccl"))
    pattern = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
    return next(filter(None, (_banner_version(module, b"NCCL version ", pattern) for module in libraries)), None)


def _banner_version(module: Module, beginning: bytes, pattern: re.Pattern[bytes]) -> str | None:
    """The version in the first string of .rodata that matches the pattern, of the first eight with that beginning
    (formats of messages may have it, too)."""
    image = module.image
    section = image.sections.get(".rodata") if image else None
    if not image or not section:
        return None
    address = image.find(beginning, section.address, section.address + section.size)
    for _ in range(8):
        match = pattern.match(image.read(address, 160)) if address is not None else None
        if match or address is None:
            return match.group(1).decode() if match else None
        address = image.find(beginning, address + 1, section.address + section.size)
    return None
