"""The engine's thread-local variables in releases whose compiler gave them no names of their own.

Each is a static variable of a lambda in a ``c10::ThreadLocal`` (c10/util/ThreadLocal.h), which keeps a pointer to the
lambda's function; the lambdas of different files have one name. Which variable a function returns stands in its code:
its offset among the thread-locals of the library.
"""

from __future__ import annotations

from gdbext.errors import BadData
from gdbext.formats.symbols.symbol_table import STT_TLS, Symbol
from gdbext.process.memory import Memory
from gdbext.process.modules import Module
from gdbext.process.symbols import Symbolizer
from gdbext.torch.symbols import UNNAMED_ENGINE_VARIABLES
from gdbext.torch.torch_symbol import TorchSymbol

_CODE = 160
"""Bytes of such a function at most."""
_SHARED_POINTER = 16
"""Bytes of a std::shared_ptr, which they all are."""


class UnnamedVariables:
    """Finds them in one torch."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._found: dict[str, tuple[Module, Symbol]] = {}

    def is_named(self, variable: TorchSymbol) -> bool:
        """It has a name of its own in this release."""
        return variable.find(self._symbolizer) is not None

    def returned_by(self, access: TorchSymbol) -> tuple[Module, Symbol]:
        """The variable that the function returns to which ``access`` points. Raises BadData, MemoryFault."""
        name = access.names[0]
        if name not in self._found:
            self._found[name] = self._find(access)
        return self._found[name]

    def _find(self, access: TorchSymbol) -> tuple[Module, Symbol]:
        found, pointer = access.find(self._symbolizer), access.address(self._symbolizer)
        if found is None or pointer is None:
            raise BadData(f"{access.library} has no {access.names[0]}")
        module, code = found[0], self._code(self._memory.u64(pointer))
        index = self._symbolizer.index(module)
        candidates = [
            symbol
            for name in UNNAMED_ENGINE_VARIABLES
            for symbol in (index.lookup(name) if index is not None else ())
            if symbol.type == STT_TLS
            and symbol.size == _SHARED_POINTER
            and symbol.vaddr.to_bytes(4, "little") in code
        ]
        if len(candidates) != 1:
            raise BadData(f"which variable {access.names[0]} stands for is not seen in its function")
        return module, candidates[0]

    def _code(self, address: int) -> bytes:
        function = self._symbolizer.function(address)
        if function is None or function.start != address:
            raise BadData(f"there is no function at {address:#x}")
        return self._memory.read(address, min(function.size, _CODE))
