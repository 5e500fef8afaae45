"""Thread-local variables of libtorch by name, for one thread: their bytes, also if the thread never used them."""

from __future__ import annotations

from gdbext.engine.formats.elf_header import PT_TLS
from gdbext.engine.formats.symbol_table import STT_TLS, Symbol
from gdbext.engine.glibc.thread_locals import ThreadLocals, ThreadLocalUntouched
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData
from gdbext.torch.memoized import memoized
from gdbext.torch.torch_symbol import TorchSymbol


class ThreadVariables:
    """Reads thread-local variables of any thread. One object serves all threads of a target."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self.memory = memory
        self._symbolizer = symbolizer
        self._locals = ThreadLocals(memory, symbolizer.modules)

    def of(self, thread_pointer: int) -> VariablesOfThread:
        """The variables of the thread with its control block at ``thread_pointer``."""
        return VariablesOfThread(self, thread_pointer)

    def block(self, thread_pointer: int, module: Module, guard: int | None) -> int:
        """Address of the module's TLS block in the thread with that thread pointer; 0 if the byte at the offset
        ``guard`` in it says that the variable was not constructed. Raises ThreadLocalUntouched, ThreadLocalUnknown,
        MemoryFault."""
        block = self._locals.block(thread_pointer, module)
        return 0 if guard is not None and not self.memory.u8(block + guard) else block

    def find(self, variable: TorchSymbol) -> tuple[Module, Symbol]:
        """The module that defines a variable, and its symbol there. Raises BadData if there is none."""
        definition = variable.find(self._symbolizer)
        if not definition or definition[1].type != STT_TLS:
            raise BadData(f"{variable.library} has no thread-local variable {variable.names[0]}")
        return definition

    @memoized
    def guard(self, module: Module, symbol: Symbol) -> int | None:
        """Offset in the TLS block of the byte that says whether the variable's constructor ran; None if it has none.

        GCC places the guard (``__tls_guard``) of a translation unit's dynamically initialized thread-locals before
        them, no farther away than their alignment.
        """
        index = self._symbolizer.index(module)
        guards = (guard.vaddr for guard in (index.lookup("__tls_guard") if index else ()) if guard.type == STT_TLS)
        return max((guard for guard in guards if 0 < symbol.vaddr - guard <= 32), default=None)


class VariablesOfThread:
    """The thread-local variables of one thread."""

    def __init__(self, variables: ThreadVariables, thread_pointer: int) -> None:
        self._variables = variables
        self._thread_pointer = thread_pointer
        self.memory = variables.memory

    def read(self, variable: TorchSymbol, size: int) -> bytes:
        """The first ``size`` bytes of the variable: its initial bytes if the thread has not used the module's
        thread-locals; b"" if its constructor has not run in this thread, so that it has the source's initial value.
        Raises BadData if there is no such variable or it is smaller, ThreadLocalUnknown, MemoryFault."""
        module, symbol = self._variables.find(variable)
        return self.read_symbol(module, symbol, size, self._variables.guard(module, symbol))

    def read_constant(self, variable: TorchSymbol, size: int) -> bytes:
        """As ``read``, for a variable whose initial value is a constant: it needs no constructor, and a guard near it
        is another variable's."""
        return self.read_symbol(*self._variables.find(variable), size) or bytes(size)

    def read_symbol(self, module: Module, symbol: Symbol, size: int, guard: int | None = None) -> bytes:
        """As ``read``; ``guard`` is the offset of the byte that says whether the constructor has run, None if the
        initial value is a constant."""
        if symbol.size < size:
            raise BadData(f"{symbol.name} has {symbol.size} bytes, not {size}")
        try:
            block = self._variables.block(self._thread_pointer, module, guard)
        except ThreadLocalUntouched:
            if guard is not None:
                return b""
            # the bytes that a thread's copy starts with: .tdata of the file, zeros behind it
            image, offset = module.image, symbol.vaddr
            segment = next((part for part in image.segments if part.type == PT_TLS), None) if image else None
            if image and segment and offset + size <= segment.memsz:
                stored = max(0, min(size, segment.filesz - offset))
                raw = image.read(segment.vaddr + offset, stored) if stored else b""
                if raw or not stored:
                    return raw + bytes(size - len(raw))
            raise BadData(f"the initial thread-local data of {module.name} cannot be read") from None
        return self.memory.read(block + symbol.vaddr, size) if block else b""

    def address(self, variable: TorchSymbol) -> int:
        """Address of the variable in that thread; 0 if the thread has none (yet). Raises as ``read`` does."""
        module, symbol = self._variables.find(variable)
        try:
            block = self._variables.block(self._thread_pointer, module, self._variables.guard(module, symbol))
        except ThreadLocalUntouched:
            return 0
        return block + symbol.vaddr if block else 0
