"""The C++ class of an object, by the symbol of its vtable."""

from __future__ import annotations

from gdbext.formats.symbols.demangle import demangle
from gdbext.process.memory import Memory
from gdbext.process.symbols import Symbolizer

_PREFIX = "_ZTV"
_START = 16
"""A vtable's symbol is two words before the address that objects point to (Itanium C++ ABI 2.5)."""
_TITLE = "vtable for "


class ClassNames:
    """Names of classes, each vtable looked up once."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._names: dict[int, tuple[str, ...]] = {}

    def of(self, address: int) -> tuple[str, ...]:
        """Names of the class of the object at ``address``, aliases too; () where it has no vtable with a symbol.

        Raises MemoryFault.
        """
        vtable = self._memory.u64(address)
        found = self._names.get(vtable)
        if found is None:
            mangled = self._symbolizer.names_at(vtable - _START)
            titles = (demangle(name) for name in mangled if name.startswith(_PREFIX))
            found = self._names[vtable] = tuple(title[len(_TITLE) :] for title in titles if title.startswith(_TITLE))
        return found


def plain_class(name: str) -> str:
    """``MmBackward0`` of ``torch::autograd::generated::MmBackward0``; template arguments stay."""
    head, angle, arguments = name.partition("<")
    return head.rpartition("::")[2] + angle + arguments
