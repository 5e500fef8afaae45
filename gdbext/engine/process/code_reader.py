"""The target's code: its bytes, decoded functions, stubs of linkage tables, and the system call that a thread is
blocked in.

The stubs of a library's linkage table jump through words that the loader sets to the address of a function.

Elf64_Rela, and the tags of the tables: System V ABI, chapters "Relocation" and "Dynamic Linking" (elf.h).

Functions are decoded once, with every place that a jump leads to.

Short functions tell which members of an object they load, and which fixed address they return: the way to a static
variable whose symbol was stripped.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch.argument_places import jump_targets
from gdbext.engine.formats.symbol_table import dynamic_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from gdbext.engine.arch import Architecture
    from gdbext.engine.arch.instruction import Instruction
    from gdbext.engine.formats.elf import ElfImage
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.process.symbolizer import Function, Symbolizer

    Part = tuple[int, int]
    """First and last half of a part of a library's code: (0, 1) is the first half."""

_RELA = struct.Struct("<QQq")
"""r_offset, r_info (number of the symbol from bit 32 on), r_addend."""
_TABLES = ((23, 2), (7, 8))
"""(DT_JMPREL, DT_PLTRELSZ) and (DT_RELA, DT_RELASZ): where a table is, and its bytes."""
_RELATIVE_COUNT = 0x6FFFFFF9
"""DT_RELACOUNT: so many entries at the beginning of DT_RELA have no symbol."""
_LIMIT = 1 << 28
"""Most bytes of a table."""


def imported_slots(image: ElfImage, names: Collection[str]) -> set[int]:
    """The virtual addresses of the slots that hold the address of one of these symbols, be it defined in the library or
    not. Raises SymbolFileError."""
    table = dynamic_table(image)
    if not table:
        return set()
    wanted = {
        number
        for name in names
        for number in table.numbers_with([name.encode()])
        if table.is_named(number, name.encode())
    }
    return {slot for slot, number in _relocations(image) if number in wanted} if wanted else set()


def _relocations(image: ElfImage) -> Iterator[tuple[int, int]]:
    """(virtual address, number of the symbol)"""
    dynamic = image.dynamic
    for where, size in _TABLES:
        skipped = dynamic.get(_RELATIVE_COUNT, 0) * _RELA.size if where == 7 else 0
        length = min(dynamic.get(size, 0), _LIMIT) - skipped
        raw = image.read(dynamic.get(where, -1) + skipped, length) if where in dynamic and length > 0 else b""
        for slot, info, _ in _RELA.iter_unpack(raw[: len(raw) // _RELA.size * _RELA.size]):
            yield slot, info >> 32


_OFFSETS = ".got"
_SECTIONS = (".plt", ".plt.sec", ".plt.got")


def import_stubs(module: Module, architecture: Architecture, names: Collection[str]) -> list[int]:
    """The absolute addresses of the library's stubs for one of these symbols, whether the loader has bound them already
    or not. Raises SymbolFileError."""
    image = module.image
    slots = imported_slots(image, names) if image else set()
    found = []
    for name in _SECTIONS if slots else ():
        section = image.sections.get(name) if image else None
        code = image.read(section.address, section.size) if image and section else b""
        if section and code:
            found += [module.base + stub for stub, slot in architecture.stubs(code, section.address) if slot in slots]
    return found


WHOLE: Part = (0, 2)
HALVES: tuple[Part, ...] = ((0, 1), (1, 2))


def text_pieces(module: Module, overlap: int, part: Part = WHOLE) -> Iterator[tuple[int, bytes]]:
    """The code of a library in pieces with their absolute addresses, each with the first ``overlap`` bytes of the next;
    the first half has those of the second one, too."""
    image = module.image
    text = image.sections.get(".text") if image else None
    if image and text:
        first, end = (text.size * each // 2 for each in part)
        size = min(end + overlap, text.size) - first
        for start, code in image.pieces(text.address + first, size, overlap):
            yield module.base + start, code


class CodeReader:
    """Reads instructions from a module's file where possible (a core may lack them), else from memory."""

    def __init__(self, memory: Memory, modules: ModuleTable) -> None:
        self._memory = memory
        self._modules = modules

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes of code at ``address``, b"" where they cannot be had."""
        if address < 0:
            return b""
        module = self._modules.find(address)
        found = module.image.read(module.vaddr(address), size) if module and module.image else b""
        return found or self._memory.try_read(address, size)

    def after(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes of code from ``address`` on; b"" where they cannot be had."""
        while size:
            found = self.read(address, size)
            if found:
                return found
            size //= 2
        return b""

    def before(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes of code that end at ``address``; b"" where they cannot be had."""
        while size:
            found = self.read(address - size, size)
            if found:
                return found
            size //= 2
        return b""

    def imported(self, slot: int) -> int:
        """The function whose address the loader has put into a slot of a module's global offset table; 0 for any
        other place. With -fno-plt, calls go through such slots."""
        module = self._modules.find(slot)
        table = module.image.sections.get(_OFFSETS) if module and module.image else None
        if not module or not table or not 0 <= module.vaddr(slot) - table.address < table.size:
            return 0
        return self._memory.try_u64(slot) or 0

    def is_code(self, address: int) -> bool:
        """True where the address is in executable memory (as far as is known: a core may lack permissions)."""
        module = self._modules.find(address)
        if module and module.image:
            return module.image.is_code(module.vaddr(address))
        mapping = self._modules.mapping_at(address)
        if mapping and mapping.permissions:
            return "x" in mapping.permissions
        return bool(module)


MAX_SIZE = 1 << 15
"""Bytes of a function that are decoded; ``at::_ops`` and VariableType functions have 300 to 6,000."""
_COLD = ".cold"


class Decoded(NamedTuple):
    """Instructions of one function, and the targets of all jumps in it and in its cold part."""

    instructions: tuple[Instruction, ...]
    labels: frozenset[int]

    def up_to(self, pc: int) -> list[Instruction]:
        """The instructions that end at ``pc`` or before; [] where none ends just there."""
        before = [found for found in self.instructions if found.end <= pc]
        return before if before and before[-1].end == pc else []

    @property
    def calls(self) -> list[Instruction]:
        return [found for found in self.instructions if found.is_call]


EMPTY = Decoded((), frozenset())


class FunctionCode:
    """Decodes functions of one process and keeps them."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._decoded: dict[int, Decoded] = {}

    def of(self, function: Function | None) -> Decoded:
        """The function's code; EMPTY where it cannot be read or is too large."""
        if not function:
            return EMPTY
        found = self._decoded.get(function.start)
        if not found:
            found = self._decoded[function.start] = self._decode(function)
        return found

    def function(self, address: int) -> Function | None:
        """The function around an address that a symbol covers."""
        return self._symbolizer.function(address)

    def is_constant(self, address: int) -> bool:
        """The 8 bytes there are part of a file and cannot be written to."""
        module = self._symbolizer.modules.find(address)
        image = module.image if module else None
        return bool(module and image and image.is_read_only(module.vaddr(address), 8))

    def _decode(self, function: Function) -> Decoded:
        if not 0 < function.size <= MAX_SIZE:
            return EMPTY
        code = self._memory.try_read(function.start, function.size)
        found = _decoded(self._memory.architecture, code, function.start)
        cold = self._cold_part(function)
        return Decoded(found, frozenset(jump_targets(found) | jump_targets(cold)))

    def _cold_part(self, function: Function) -> tuple[Instruction, ...]:
        """GCC moves unlikely code to ``NAME.cold``, which may jump back."""
        for name in function.names:
            start = self._symbolizer.address_of(name + _COLD, function.module.name)
            cold = self._symbolizer.function(start) if start else None
            if cold and cold.start == start and 0 < cold.size <= MAX_SIZE:
                code = self._memory.try_read(cold.start, cold.size)
                return _decoded(self._memory.architecture, code, cold.start)
        return ()


@lru_cache(maxsize=32)
def _decoded(architecture: Architecture, code: bytes, start: int) -> tuple[Instruction, ...]:
    """The instructions of this code; kept for the next look at the same code."""
    return tuple(architecture.decode(code, start))


class Syscall(NamedTuple):
    """A blocked system call: its name (``futex``, or ``system call 500``), number and arguments, in order."""

    name: str
    number: int
    arguments: tuple[int, ...]


RESTARTED = "restart_syscall"
"""The call that a thread is in after a stop, where nothing in it says which one goes on."""


def blocked(registers: Mapping[str, int], memory: Memory) -> Syscall | None:
    """The system call that the thread sits in, None when it runs user code."""
    found = memory.architecture.blocked_syscall(registers, memory.try_read)
    return named(memory, *found) if found else None


def continued(call: Syscall, memory: Memory, cfa: int) -> Syscall:
    """The one that goes on in a RESTARTED one; ``cfa`` is that of the thread's second frame."""
    return named(memory, memory.architecture.restarted_syscall(call.number, memory.try_read, cfa), call.arguments)


def named(memory: Memory, number: int, arguments: tuple[int, ...]) -> Syscall:
    """The call with its name, or ``system call 500``."""
    return Syscall(memory.architecture.syscall_names.get(number, f"system call {number}"), number, arguments)


_MOST_INSTRUCTIONS = 64


def returned_address(architecture: Architecture, code: bytes, address: int) -> int:
    """The fixed address that the function whose ``code`` starts at ``address`` returns on a way without calls.

    ``T& get() { static T made; return made; }`` has such a way: the one on which the variable exists already. 0
    where there is none, or where its ways return different addresses.
    """
    ways: list[tuple[int, dict[str, int]]] = [(address, {})]
    found: set[int] = set()
    visited: set[int] = set()
    while ways:
        start, known = ways.pop()
        if start in visited or not 0 <= start - address < len(code):
            continue
        visited.add(start)
        for instruction in list(architecture.decode(code[start - address :], start))[:_MOST_INSTRUCTIONS]:
            if instruction.kind == "jcc" and instruction.target:
                ways.append((instruction.target, dict(known)))
            elif instruction.kind == "ret":
                found.add(known.get(architecture.result_register, 0))
                break
            elif instruction.kind in ("call", "jmp", "trap"):
                if instruction.kind == "jmp" and instruction.target:
                    ways.append((instruction.target, known))
                break
            else:
                _follow(instruction, known)
    return found.pop() if len(found) == 1 else 0


def _follow(instruction: Instruction, known: dict[str, int]) -> None:
    """Note which registers hold fixed addresses behind an instruction."""
    value = 0
    if instruction.kind == "lea":
        value = instruction.fixed_operand
    elif instruction.kind == "mov" and instruction.source:
        value = known.get(instruction.source, 0)
    for register in instruction.writes:
        known.pop(register, None)
    if instruction.destination and value:
        known[instruction.destination] = value


def member_loads(architecture: Architecture, code: Iterable[Instruction], argument: int) -> Iterator[int]:
    """Offsets of words that are loaded from the object that an argument points at, in the order of the code.

    ``code`` is the function from its start. It is followed in a straight line, as far as a register is known to have
    the argument's value.
    """
    holders = {architecture.argument_registers[argument]}
    for one in code:
        memory = one.memory
        loads = one.kind == "mov" and one.destination
        if loads and memory and memory.base in holders and not memory.index_register:
            yield memory.displacement
        copied = one.kind == "mov" and one.source in holders
        holders -= one.writes - set(architecture.callee_saved) if one.is_call else one.writes
        if copied and one.destination:
            holders.add(one.destination)
        if not holders or one.kind in ("ret", "jmp", "trap"):
            return
