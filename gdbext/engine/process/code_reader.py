"""The target's code: its bytes, decoded functions, stubs of linkage tables, and the call a thread is blocked in."""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import islice
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
    """(first, end) of a part of a library's code, in halves: (0, 1) is the first half."""

_RELA = struct.Struct("<QQq")
"""r_offset, r_info (number of the symbol from bit 32 on), r_addend."""


def imported_slots(image: ElfImage, names: Collection[str]) -> set[int]:
    """The virtual addresses of the slots that hold the address of one of these symbols, whether it is defined in the
    library or not (System V ABI, "Relocation" and "Dynamic Linking"; elf.h). Raises SymbolFileError."""
    table = dynamic_table(image)
    if not table:
        return set()
    wanted = {
        number
        for name in names
        for number in table.numbers_with([name.encode()])
        if table.is_named(number, name.encode())
    }
    slots: set[int] = set()
    dynamic = image.dynamic if wanted else {}
    # (DT_JMPREL, DT_PLTRELSZ) and (DT_RELA, DT_RELASZ): address and size of a table
    for where, size in ((23, 2), (7, 8)):
        # DT_RELACOUNT: the number of entries at the beginning of DT_RELA without a symbol
        skipped = dynamic.get(0x6FFFFFF9, 0) * _RELA.size if where == 7 else 0
        length = min(dynamic.get(size, 0), 1 << 28) - skipped
        raw = image.read(dynamic.get(where, -1) + skipped, length) if where in dynamic and length > 0 else b""
        rows = _RELA.iter_unpack(raw[: len(raw) // _RELA.size * _RELA.size])
        slots.update(slot for slot, info, _ in rows if info >> 32 in wanted)
    return slots


def import_stubs(module: Module, architecture: Architecture, names: Collection[str]) -> list[int]:
    """The absolute addresses of the library's stubs for one of these symbols, whether the loader has bound them already
    or not: they jump through the slots. Raises SymbolFileError."""
    image = module.image
    slots = imported_slots(image, names) if image else set()
    sections = (image.sections.get(name) for name in (".plt", ".plt.sec", ".plt.got")) if image and slots else ()
    stubs = []
    for section in filter(None, sections):
        code = image.read(section.address, section.size) if image else b""
        stubs += [module.base + stub for stub, slot in architecture.stubs(code, section.address) if slot in slots]
    return stubs


WHOLE: Part = (0, 2)
HALVES: tuple[Part, ...] = ((0, 1), (1, 2))


def text_pieces(module: Module, overlap: int, part: Part = WHOLE) -> Iterator[tuple[int, bytes]]:
    """(absolute address, bytes) of the code of a library in pieces, each with the first ``overlap`` bytes of the next;
    the first half ends with those of the second one, too."""
    image = module.image
    text = image.sections.get(".text") if image else None
    if image and text:
        first, end = (text.size * half // 2 for half in part)
        size = min(end + overlap, text.size) - first
        for start, code in image.pieces(text.address + first, size, overlap):
            yield module.base + start, code


class CodeReader:
    """Reads instructions from a module's file if possible (a core may lack them), else from memory."""

    def __init__(self, memory: Memory, modules: ModuleTable) -> None:
        self._memory = memory
        self._modules = modules

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes of code at ``address``, b"" if they cannot be read."""
        if address < 0:
            return b""
        module = self._modules.find(address)
        code = module.image.read(module.vaddr(address), size) if module and module.image else b""
        return code or self._memory.try_read(address, size)

    def read_after(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes of code from ``address`` on: half as many, and so on, if they cannot be read."""
        while size and not (code := self.read(address, size)):
            size //= 2
        return code if size else b""

    def read_before(self, address: int, size: int) -> bytes:
        """As ``read_after``, of the code that ends at ``address``."""
        while size and not (code := self.read(address - size, size)):
            size //= 2
        return code if size else b""

    def bound_function(self, slot: int) -> int:
        """The function whose address the loader has put at ``slot``, an address in a module's global offset table; 0
        for any other address. With -fno-plt, calls go through such slots."""
        module = self._modules.find(slot)
        table = module.image.sections.get(".got") if module and module.image else None
        is_slot = module and table and 0 <= module.vaddr(slot) - table.address < table.size
        return (self._memory.try_u64(slot) or 0) if is_slot else 0

    def is_code(self, address: int) -> bool:
        """True if the address is in executable memory (as far as known: a core may lack permissions)."""
        module = self._modules.find(address)
        if module and module.image:
            return module.image.is_code(module.vaddr(address))
        mapping = self._modules.mapping_at(address)
        return "x" in mapping.permissions if mapping and mapping.permissions else bool(module)


MAX_SIZE = 1 << 15
"""Bytes of a function that are decoded; ``at::_ops`` and VariableType functions have 300 to 6,000."""


class FunctionInstructions(NamedTuple):
    """Instructions of one function, and the targets of all jumps in it and in its cold part."""

    instructions: tuple[Instruction, ...]
    labels: frozenset[int]

    def up_to(self, pc: int) -> list[Instruction]:
        """The instructions that end at ``pc`` or before; [] if none ends exactly there."""
        before = [instruction for instruction in self.instructions if instruction.end <= pc]
        return before if before and before[-1].end == pc else []

    @property
    def calls(self) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.is_call]


EMPTY = FunctionInstructions((), frozenset())


class FunctionCode:
    """Decodes functions of one process, each once."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._decoded: dict[int, FunctionInstructions] = {}  # by the start of the function

    def of(self, function: Function | None) -> FunctionInstructions:
        """The function's code; EMPTY for None, and if it cannot be read or is too large."""
        if not function:
            return EMPTY
        if function.start not in self._decoded:
            self._decoded[function.start] = self._decode(function)
        return self._decoded[function.start]

    def function(self, address: int) -> Function | None:
        """The function around an address that a symbol covers."""
        return self._symbolizer.function(address)

    def is_read_only_word(self, address: int) -> bool:
        """The 8 bytes there are part of a file and cannot be written to."""
        module = self._symbolizer.modules.find(address)
        image = module.image if module else None
        return bool(module and image and image.is_read_only(module.vaddr(address), 8))

    def _decode(self, function: Function) -> FunctionInstructions:
        """Decode a function, with the targets of the jumps in its cold part."""
        if not 0 < function.size <= MAX_SIZE:
            return EMPTY
        instructions = self._instructions(function)
        labels = jump_targets(instructions)
        for name in function.names:  # GCC moves unlikely code to ``NAME.cold``, which may jump back
            start = self._symbolizer.address_of(f"{name}.cold", function.module.name)
            cold = self._symbolizer.function(start) if start else None
            if cold and cold.start == start and 0 < cold.size <= MAX_SIZE:
                labels = labels | jump_targets(self._instructions(cold))
                break
        return FunctionInstructions(instructions, frozenset(labels))

    def _instructions(self, function: Function) -> tuple[Instruction, ...]:
        code = self._memory.try_read(function.start, function.size)
        return _decoded(self._memory.architecture, code, function.start)


@lru_cache(maxsize=32)
def _decoded(architecture: Architecture, code: bytes, start: int) -> tuple[Instruction, ...]:
    """The instructions of this code; cached for the next session."""
    return tuple(architecture.decode(code, start))


class Syscall(NamedTuple):
    """A blocked system call: its name (``futex``, or ``system call 500``), number and arguments, in order."""

    name: str
    number: int
    arguments: tuple[int, ...]


RESTARTED = "restart_syscall"
"""The call that a thread is in after a stop if nothing says which call it restarts."""


def blocked_syscall(registers: Mapping[str, int], memory: Memory) -> Syscall | None:
    """The system call that the thread is in, None if it runs user code."""
    call = memory.architecture.blocked_syscall(registers, memory.try_read)
    return make_syscall(memory, *call) if call else None


def restarted_call(call: Syscall, memory: Memory, cfa: int) -> Syscall:
    """The call that ``call``, a RESTARTED one, restarts; ``cfa`` is that of the thread's second frame."""
    number = memory.architecture.restarted_syscall(call.number, memory.try_read, cfa)
    return make_syscall(memory, number, call.arguments)


def make_syscall(memory: Memory, number: int, arguments: tuple[int, ...]) -> Syscall:
    """The system call of that number, with its name on the architecture of ``memory``."""
    return Syscall(memory.architecture.syscall_names.get(number, f"system call {number}"), number, arguments)


def returned_address(architecture: Architecture, code: bytes, address: int) -> int:
    """The fixed address that the function whose ``code`` starts at ``address`` returns on a path without calls.

    ``T& get() { static T made; return made; }`` has such a path, on which the variable exists already: so a static
    variable is found whose symbol was stripped. 0 if there is no such path, or paths return different addresses.
    """
    paths: list[tuple[int, dict[str, int]]] = [(address, {})]
    """(start, register → fixed address that it holds there) of each path that is still to be followed."""
    returned: set[int] = set()
    visited: set[int] = set()
    while paths:
        start, constants = paths.pop()
        if start in visited or not 0 <= start - address < len(code):
            continue
        visited.add(start)
        for instruction in islice(architecture.decode(code[start - address :], start), 64):
            if instruction.kind == "jcc" and instruction.target:
                paths.append((instruction.target, dict(constants)))
            elif instruction.kind == "ret":
                returned.add(constants.get(architecture.result_register, 0))
                break
            elif instruction.kind in ("call", "jmp", "trap"):
                if instruction.kind == "jmp" and instruction.target:
                    paths.append((instruction.target, constants))
                break
            else:
                is_copy = instruction.kind == "mov" and instruction.source
                value = constants.get(instruction.source or "", 0) if is_copy else 0
                value = instruction.fixed_operand if instruction.kind == "lea" else value
                for register in instruction.writes:
                    constants.pop(register, None)
                if instruction.destination and value:
                    constants[instruction.destination] = value
    return returned.pop() if len(returned) == 1 else 0


def member_loads(architecture: Architecture, code: Iterable[Instruction], argument: int) -> Iterator[int]:
    """Offsets of words that are loaded from the object that an argument (by its index) points at, in the order of the
    code. ``code`` is the function from its start. It is followed in a straight line, as long as a register is known to
    hold the argument's value."""
    holders = {architecture.argument_registers[argument]}
    for instruction in code:
        memory = instruction.memory
        loads = instruction.kind == "mov" and instruction.destination
        if loads and memory and memory.base in holders and not memory.index_register:
            yield memory.displacement
        copied = instruction.kind == "mov" and instruction.source in holders
        holders -= instruction.writes - set(architecture.callee_saved) if instruction.is_call else instruction.writes
        if copied and instruction.destination:
            holders.add(instruction.destination)
        if not holders or instruction.kind in ("ret", "jmp", "trap"):
            return
