"""Which CPython this is: where its ``_PyRuntime`` is and which versions it can be, without debug information."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gdbext.cpython.abi.python_layout import SUPPORTED
from gdbext.errors import PythonUnsupported
from gdbext.process.memory import Memory
from gdbext.process.modules import Module, ModuleTable
from gdbext.process.symbols import Symbolizer

RUNTIME = "_PyRuntime"
"""The runtime's global state; exported by every build since 3.7 (Include/internal/pycore_runtime.h)."""

_COOKIE = b"xdebugpy"  # _Py_Debug_Cookie, Include/internal/pycore_runtime.h of 3.13
_PYTHON_NAME = re.compile(r"^(lib)?python(\d(\.\d+)?)?t?[dm]*(\.so|$)")
_VERSION_IN_PATH = re.compile(r"python(\d)\.(\d+)")
_RELEASE_LEVELS = {0xA: "a", 0xB: "b", 0xC: "rc"}
_OLDEST_DEBUG_OFFSETS = (3, 13)
_STRING_TABLE_LIMIT = 1 << 20
"""A .dynstr larger than this is a compute library's, not an interpreter's."""


class RuntimeLocation(NamedTuple):
    """The module that holds CPython, and the address of its _PyRuntime."""

    module: Module
    address: int


class VersionEvidence(NamedTuple):
    """What is known before the runtime is read: ``hexversion`` (as sys.hexversion) where it is published,
    ``candidates`` the minor versions to try, ``source`` where that comes from."""

    hexversion: int | None
    candidates: tuple[tuple[int, int], ...]
    source: str


def find_runtimes(modules: ModuleTable, symbolizer: Symbolizer) -> Iterator[RuntimeLocation]:
    """Modules that define _PyRuntime, the likeliest first; nothing when there is no CPython (since 3.7).

    There can be two: a program that contains CPython, and a libpython that some extension was linked with and that
    never runs.
    """
    for module in _candidates(modules):
        address = _address_in(module, RUNTIME, symbolizer)
        if address is not None:
            yield RuntimeLocation(module, address)


def find_old_python(modules: ModuleTable, symbolizer: Symbolizer) -> Module | None:
    """The module of a CPython before 3.7 (it has no _PyRuntime), None if there is none."""
    for module in modules.modules:
        if _PYTHON_NAME.match(module.name) and _address_in(module, "Py_GetVersion", symbolizer) is not None:
            return module
    return None


def _candidates(modules: ModuleTable) -> Iterator[Module]:
    """Modules in the order of likelihood: named python, the executable, small libraries that mention it."""
    named = [module for module in modules.modules if _PYTHON_NAME.match(module.name)]
    programs = [module for module in modules.modules if ".so" not in module.name and module not in named]
    yield from named
    yield from programs
    for module in modules.modules:
        if module not in named and module not in programs and _mentions_runtime(module):
            yield module


def _mentions_runtime(module: Module) -> bool:
    section = module.image.sections.get(".dynstr") if module.image else None
    if module.image is None or section is None or section.size > _STRING_TABLE_LIMIT:
        return False
    return b"\0_PyRuntime\0" in module.image.contents(section.offset, section.size)


def _address_in(module: Module, name: str, symbolizer: Symbolizer) -> int | None:
    index = symbolizer.index(module)
    symbol = index.exported(name) if index is not None else None
    return module.base + symbol.vaddr if symbol is not None else None


def evidence(memory: Memory, location: RuntimeLocation, symbolizer: Symbolizer) -> VersionEvidence:
    """What the target publishes about its version. Raises PythonUnsupported (free-threaded, unknown version)."""
    header = memory.try_read(location.address, 24)
    if header is not None and header.startswith(_COOKIE):
        version, free_threaded = int.from_bytes(header[8:16], "little"), int.from_bytes(header[16:24], "little")
        if free_threaded:
            raise PythonUnsupported(f"this is a free-threaded CPython {version_text(version)} (no GIL)")
        return VersionEvidence(version, (_supported(version),), "_Py_DebugOffsets")
    version_at = _address_in(location.module, "Py_Version", symbolizer)  # Include/pylifecycle.h, since 3.11
    if version_at is not None:
        version = memory.u32(version_at)
        minor = _supported(version)
        if minor >= _OLDEST_DEBUG_OFFSETS:
            raise PythonUnsupported(f"CPython {version_text(version)} without its _Py_DebugOffsets")
        return VersionEvidence(version, (minor,), "Py_Version")
    return _from_path(location.module)


def _from_path(module: Module) -> VersionEvidence:
    """Before 3.11 nothing is exported; the path gives the order in which the layouts are tried."""
    old = tuple(minor for minor in SUPPORTED if minor < (3, 11))
    found = _VERSION_IN_PATH.search(module.name) or _VERSION_IN_PATH.search(module.path)
    if found is None:
        return VersionEvidence(None, old, "nothing")
    minor = int(found.group(1)), int(found.group(2))
    if minor < old[0]:
        raise PythonUnsupported("CPython {}.{} is not supported".format(*minor))
    if minor not in old:  # a link or a renamed file: 3.11 and later would have Py_Version
        return VersionEvidence(None, old, "nothing")
    return VersionEvidence(None, (minor, *(other for other in old if other != minor)), module.path)


def _supported(hexversion: int) -> tuple[int, int]:
    minor = hexversion >> 24, hexversion >> 16 & 0xFF
    if minor not in SUPPORTED:
        raise PythonUnsupported(f"CPython {version_text(hexversion)} is not supported")
    return minor


def version_text(hexversion: int) -> str:
    """PY_VERSION_HEX as text: 0x030b07f0 is "3.11.7", 0x030d00c2 is "3.13.0rc2" (Include/patchlevel.h)."""
    text = f"{hexversion >> 24 & 0xFF}.{hexversion >> 16 & 0xFF}.{hexversion >> 8 & 0xFF}"
    level = _RELEASE_LEVELS.get(hexversion >> 4 & 0xF)
    return f"{text}{level}{hexversion & 0xF}" if level else text
