"""The stubs through which a library calls functions by their names: its procedure linkage table."""

from __future__ import annotations

from collections.abc import Collection

from gdbext.arch.base import Architecture
from gdbext.formats.symbols.imported_slots import imported_slots
from gdbext.process.modules import Module

_SECTIONS = (".plt", ".plt.sec", ".plt.got")


def import_stubs(module: Module, architecture: Architecture, names: Collection[str]) -> list[int]:
    """The absolute addresses of the library's stubs for one of these symbols, whether the loader has bound them already
    or not. Raises SymbolFileError."""
    image = module.image
    slots = imported_slots(image, names) if image is not None else set()
    found = []
    for name in _SECTIONS if slots else ():
        section = image.sections.get(name) if image is not None else None
        code = image.read(section.address, section.size) if image is not None and section is not None else None
        if section is not None and code is not None:
            found += [module.base + stub for stub, slot in architecture.stubs(code, section.address) if slot in slots]
    return found
