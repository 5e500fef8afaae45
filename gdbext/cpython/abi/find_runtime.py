"""Finds CPython in a process: where its ``_PyRuntime`` is and which versions it can be, without debug information."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.cpython.abi.python_abi import Published, PythonAbi
from gdbext.cpython.abi.versions import SUPPORTED, abi_of_hexversion, version_text
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module, ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.record import Record, late_pattern
from gdbext.errors import PythonUnsupported

RUNTIME = "_PyRuntime"
"""The runtime's global state; exported by every build since 3.7 (Include/internal/pycore_runtime.h)."""

_COOKIE = b"xdebugpy"  # _Py_Debug_Cookie, Include/internal/pycore_runtime.h of 3.13
_PYTHON_NAME = late_pattern(r"^(lib)?python(\d(\.\d+)?)?t?[dm]*(\.so|$)")
_VERSION_IN_PATH = late_pattern(r"python(\d)\.(\d+)")
_STRING_TABLE_LIMIT = 1 << 20
"""A .dynstr larger than this is a compute library's, not an interpreter's."""


class RuntimeLocation(Record):
    """The module that holds CPython, and the address of its _PyRuntime."""

    module: Module
    address: int


class VersionEvidence(Record):
    """The knowledge before the runtime is read: ``hexversion`` (as sys.hexversion) where it is published,
    ``candidates`` the versions to try, the likeliest first, ``source`` where that comes from ("" for nowhere)."""

    hexversion: int | None
    candidates: tuple[PythonAbi, ...]
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
    """The version that the target publishes. Raises PythonUnsupported (free-threaded, unknown version)."""
    header = memory.try_read(location.address, 24)
    if header is not None and header.startswith(_COOKIE):
        version, free_threaded = int.from_bytes(header[8:16], "little"), int.from_bytes(header[16:24], "little")
        return VersionEvidence(version, (abi_of_hexversion(version, bool(free_threaded)),), "_Py_DebugOffsets")
    version_at = _address_in(location.module, "Py_Version", symbolizer)
    if version_at is not None:
        version = memory.u32(version_at)
        abi = abi_of_hexversion(version)
        if abi.published is Published.DEBUG_OFFSETS:
            raise PythonUnsupported(f"CPython {version_text(version)} without its _Py_DebugOffsets")
        return VersionEvidence(version, (abi,), "Py_Version")
    return _from_path(location.module)


def _from_path(module: Module) -> VersionEvidence:
    """The order in which the layouts of a version that publishes nothing are tried, by its path."""
    silent = tuple(abi for abi in SUPPORTED if abi.published is Published.NOTHING)
    found = _VERSION_IN_PATH.search(module.name) or _VERSION_IN_PATH.search(module.path)
    if found is None:
        return VersionEvidence(None, silent, "")
    version = int(found.group(1)), int(found.group(2))
    if version < silent[0].version:
        raise PythonUnsupported("CPython {}.{} is not supported".format(*version))
    named = tuple(abi for abi in silent if abi.version == version)
    if not named:  # a link or a renamed file: the versions that publish theirs would have done so
        return VersionEvidence(None, silent, "")
    return VersionEvidence(None, (*named, *(abi for abi in silent if abi not in named)), module.path)
