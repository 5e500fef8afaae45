"""The target's code: its bytes, and which addresses are code at all."""

from __future__ import annotations

from gdbext.process.memory import Memory
from gdbext.process.modules import ModuleTable


class CodeReader:
    """Reads instructions from a module's file where possible (a core may lack them), else from memory."""

    def __init__(self, memory: Memory, modules: ModuleTable) -> None:
        self._memory = memory
        self._modules = modules

    def read(self, address: int, size: int) -> bytes | None:
        """Exactly ``size`` bytes of code at ``address``, None where they cannot be had."""
        if address < 0:
            return None
        module = self._modules.find(address)
        if module is not None and module.image is not None:
            found = module.image.read(module.vaddr(address), size)
            if found is not None:
                return found
        return self._memory.try_read(address, size)

    def after(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes of code from ``address`` on; b"" where they cannot be had."""
        while size:
            found = self.read(address, size)
            if found is not None:
                return found
            size //= 2
        return b""

    def before(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes of code that end at ``address``; b"" where they cannot be had."""
        while size:
            found = self.read(address - size, size)
            if found is not None:
                return found
            size //= 2
        return b""

    def is_code(self, address: int) -> bool:
        """True where the address is in executable memory (as far as is known: a core may lack permissions)."""
        module = self._modules.find(address)
        if module is not None and module.image is not None:
            return module.image.is_code(module.vaddr(address))
        mapping = self._modules.mapping_at(address)
        if mapping is not None and mapping.permissions:
            return "x" in mapping.permissions
        return module is not None
