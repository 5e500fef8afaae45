"""The instructions at which a function with an inlined dispatcher has the keyset of each of its dispatches.

In ``at::_ops::NAME::call`` and ``::redispatch`` the keyset is the result of some arithmetic, or an argument in a
register that depends on the hidden result pointer. At the lookup itself it is in one register, whatever came before. A
compiler leaves one of three forms (GCC 13, torch 2.13; the forms follow from c10/core/DispatchKeySet.h, 1.12 to 2.13):

- a direct call of ``OperatorEntry::lookup``: the arguments are ``this`` and the keyset;
- the lookup inlined: ``repr_ >> num_backends`` is a shift of a copy of the keyset, and an access to ``dispatchTable_``
  follows;
- a direct call of an instantiation of ``Dispatcher::redispatch`` or ``::call`` that took the same route: the argument
  behind the operator's handle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from gdbext.engine.arch.instruction import PC_RELATIVE, Instruction
from gdbext.engine.process.code_reader import CodeReader
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Function, Symbolizer
from gdbext.engine.unwind.frame_steps import CfaRule, FrameTables, cfa_rule_at
from gdbext.errors import MemoryFault
from gdbext.torch.assumed_symbols import (
    BOXED_WRAPPER,
    DISPATCHER_CALL,
    DISPATCHER_REDISPATCH,
    KERNEL_FUNCTION,
    LOOKUP,
    NEVER_RETURNING,
    SLOW_PATH,
    STEP_CALLBACKS,
    UNBOXED_CALL,
)
from gdbext.torch.memoized import memoized
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.stack.inlined_events import offset_in_entry, only_boxed

_NEAR = 48
"""Instructions between the parts of one lookup, at most."""


class Invocation(NamedTuple):
    """A call or jump through which the function may enter a kernel."""

    address: int
    after: int | None
    """Address behind a call; None for a jump."""
    through: str
    """"kernel" (the table's pointer itself), "boxing" (``BoxedKernelWrapper``) or "profiler" (the slow path, which
    calls the kernel while RecordFunction callbacks are active)."""
    pointer: str
    """For "kernel": the register that holds the kernel's address, or, if ``in_memory``, the word at that register +
    ``displacement`` does."""
    displacement: int
    in_memory: bool


class LookupSites(NamedTuple):
    """The instructions of one function at which a dispatch can be observed."""

    lookup: int
    """Address of the instruction that looks the kernel up."""
    keyset: str
    """The register that holds the keyset there."""
    entry: str
    """The register that holds the OperatorEntry* there; "" if it is unknown."""
    frame: CfaRule
    """The CFA at ``lookup``."""
    how: str
    """The form: "call", "inlined" or "out of line"."""
    invocations: tuple[Invocation, ...]
    returns: tuple[int, ...]
    """Addresses of the function's return instructions."""
    tail_calls: bool
    """It may jump to the kernel, so that its return cannot be seen."""
    others: tuple[tuple[int, CfaRule], ...] = ()
    """(address, CFA) of the same lookup in other branches: each dispatch passes exactly one of all."""
    constant: int = 0
    """The keyset if it is written in the code; then ``keyset`` is ""."""


class FoundLookup(NamedTuple):
    """One lookup of a function that may have many. ``event`` is a DispatchEvent's value: what it is made for."""

    sites: LookupSites
    event: str


class SiteFinder:
    """Finds the lookups in functions of one process."""

    def __init__(
        self, memory: Memory, modules: ModuleTable, symbolizer: Symbolizer, num_backends: int, table: range
    ) -> None:
        """``table`` is the range of offsets of ``OperatorEntry::dispatchTable_``'s first entry."""
        self._memory = memory
        self._architecture = memory.architecture
        self.tables = FrameTables(memory, modules)
        self._files = CodeReader(memory, modules)
        self._symbolizer = symbolizer
        self.shift = num_backends
        self._table = table
        self._last: tuple[int, int, list[Instruction]] = 0, 0, []
        """(start, size, instructions) of the function that was decoded last."""

    def find(self, start: int, size: int, handles: Collection[int] = ()) -> LookupSites | None:
        """The sites of the function of ``size`` bytes at ``start``; None if no lookup is recognized, or several
        compete. ``handles`` are the addresses of the function's static OperatorHandles. Raises MemoryFault."""
        code = self._decoded(start, size)
        lookup = self._lookup(code, handles)
        if not lookup:
            return None
        positions, keyset, entry, how = lookup
        frames = [self._frame(code, position) for position in positions]
        frame = frames[0]
        if not frame or None in frames:
            return None
        end = start + size
        invocations = tuple(self._invocations(code, positions[0]))
        may_jump = any(invocation.after is None for invocation in invocations)
        if may_jump:
            frame = frame._replace(size=self._architecture.call_pushes)
        addresses = [code[position].address for position in positions]
        others = tuple((address, rule) for address, rule in zip(addresses[1:], frames[1:]) if rule)
        returns = tuple(insn.address for insn in code if insn.kind == "ret" and start <= insn.address < end)
        return LookupSites(addresses[0], keyset, entry, frame, how, invocations, returns, may_jump, others)

    def all_lookups(self, function: Function) -> list[FoundLookup]:
        """Every lookup in a function that may dispatch several operators. Raises MemoryFault."""
        code = self._decoded(function.start, function.size)
        this, keyset = self._architecture.argument_registers[:2]
        targets = ((index, insn.target) for index, insn in enumerate(code) if insn.is_call and insn.target)
        called = [(index, keyset, this) for index, target in targets if self.is_lookup(target)]
        return self._framed(code, sorted([*called, *(lookup for lookup in self._inlined(code) if lookup[2])]))

    def _framed(
        self,
        code: Sequence[Instruction],
        lookups: Sequence[tuple[int, str, str]],
        constant: int = 0,
        is_late: bool = False,
    ) -> list[FoundLookup]:
        """These lookups with their frames. ``lookups``: (index in ``code``, register of the keyset, register of the
        OperatorEntry*), in order; ``constant``: as in LookupSites; ``is_late``: they are accesses to the table."""
        ends = [*(index for index, _, _ in lookups[1:]), len(code)]
        returns = tuple(insn.address for insn in code if insn.kind == "ret")
        framed = []
        for (index, bits, entry), end in zip(lookups, ends):
            frame = self._frame(code, index)
            if frame:
                how = "call" if code[index].is_call else "inlined"
                invoked = tuple(self._invocations(code[:end], index))
                sites = LookupSites(code[index].address, bits, entry, frame, how, invoked, returns, False, (), constant)
                framed.append(FoundLookup(sites, self._event(code[max(0, index - is_late) : end])))
        return framed

    def late_lookups(self, function: Function) -> list[FoundLookup]:
        """The lookups in a function whose keyset or OperatorEntry* is first in a register where the table is accessed:
        the entry was in memory before, or the keyset is not shifted because its functionality is known
        (``DispatchKeySet(DispatchKey::Meta)``). Raises MemoryFault."""
        code = self._decoded(function.start, function.size)
        lookups = []
        shifts = self._inlined(code)
        for index, keyset, base in shifts:
            if not base:
                lookups += self._framed(code, self._at_access(code, index, keyset), is_late=True)
        near = {index for shift, _, _ in shifts for index in range(shift, shift + _NEAR)}
        for index, insn in enumerate(code):
            base = self._indexed_table(insn) if insn.kind == "lea" and index not in near else ""
            keyset, constant = self._passed_keyset(code[index - 1 : index + _NEAR]) if base and index else ("", 0)
            if keyset or constant:
                lookups += self._framed(code, [(index, keyset, base)], constant, is_late=True)
        return lookups

    def _indexed_table(self, insn: Instruction) -> str:
        """The register of the OperatorEntry* in an indexed access to its table; "" for any other instruction."""
        memory = insn.memory
        if not memory or not memory.index_register or memory.base in ("", self._architecture.stack_pointer):
            return ""
        return memory.base if offset_in_entry(memory.displacement, self._table) is not None else ""

    def _at_access(self, code: Sequence[Instruction], index: int, keyset: str) -> list[tuple[int, str, str]]:
        """The first access to the table after the shift ``code[index]`` of the register ``keyset``, as a lookup, if the
        keyset was copied from a register that is unchanged there; else []."""
        written: set[str] = set()
        for copy in range(index - 1, max(-1, index - _NEAR), -1):
            if keyset in code[copy].writes:
                break
            written |= code[copy].writes
        else:
            return []
        source = code[copy].source if code[copy].kind == "mov" else ""
        for position in range(index, min(len(code), index + _NEAR)):
            base = self._indexed_table(code[position])
            if base:
                return [(position, source, base)] if source and source not in written else []
            written |= code[position].writes
        return []

    def _passed_keyset(self, code: Sequence[Instruction]) -> tuple[str, int]:
        """(register that holds the keyset at the beginning, keyset of one or two bits if it is a constant) that
        straight ``code`` passes to a kernel; ("", 0) if none is recognized. ``code`` begins before the access to
        the table. The keyset is behind the functor, the kernel's first word, or in a boxed call behind the operator."""
        arguments, table = self._architecture.argument_registers[:3], code[1].destination
        position = 2 if only_boxed(self._architecture, code, self._table) else 1
        passed: dict[str, Instruction] = {}
        """Register → the instruction that wrote it last."""
        for insn in code[2:]:
            if insn.is_call and not insn.target:
                move = passed.get(arguments[position])
                value = (move.immediate or 0) if move and move.kind == "mov" else 0
                if 1 << self.shift <= value and bin(value).count("1") <= 2:
                    return "", value
                return (move.source if move and move.kind == "mov" and move.source not in passed else ""), 0
            if insn.is_call or insn.kind in ("jmp", "ret"):
                break
            memory = insn.memory
            if insn.kind == "mov" and insn.destination == arguments[1] and memory and memory[:2] == (table, ""):
                position = 2 if memory.displacement == 0 else position
            passed.update((register, insn) for register in insn.writes)
        return "", 0

    @memoized
    def is_lookup(self, target: int) -> bool:
        """True if a call of ``target`` calls ``OperatorEntry::lookup``, by its name; by its code if it has no name: one
        lookup, and no call through a pointer."""
        name, address = self._name(target), follow_stub(self._memory, target)
        function = None if name else self.tables.extent(address)
        if function and function.start == address and 0 < function.size <= 1 << 10:  # a lookup has 270 bytes
            code = self.code(range(address, address + function.size))
            calls_pointer = any(insn.is_call and not insn.target for insn in code)
            return not calls_pointer and len(self._inlined(code)) == 1
        return LOOKUP.begins(name)

    def code(self, span: range) -> list[Instruction]:
        """The instructions at these addresses; [] if they cannot be read."""
        try:
            return self._decoded(span.start, len(span))
        except MemoryFault:
            return []

    def _decoded(self, start: int, size: int) -> list[Instruction]:
        """The instructions of the function at ``start`` (64 KiB at most); those of the file if a trap is among them,
        which may be a uprobe's or a breakpoint. A call or jump through the slot of an import gets its ``target``, as a
        direct one. The last function is cached. Raises MemoryFault."""
        size = min(size, 1 << 16)
        if self._last[:2] != (start, size):
            raw = self._memory.read(start, size)
            code = list(self._architecture.decode(raw, start))
            if any(insn.kind == "trap" for insn in code):
                code = list(self._architecture.decode(self._files.read(start, size) or raw, start))
            for index, insn in enumerate(code):
                slot = insn.fixed_operand if insn.kind in ("call", "jmp") else 0
                target = self._files.bound_function(slot) if slot else 0
                if target:
                    code[index] = insn._replace(target=target)
            self._last = start, size, code
        return self._last[2]

    def dispatch_step(self, insn: Instruction) -> str:
        """ "lookup" if an instruction looks a kernel up, "kernel" if it may call one, or a function that boxes its
        arguments; "" for all others."""
        if not insn.is_call:
            return "lookup" if insn.kind == "shr" and insn.immediate == self.shift else ""
        if insn.target and self.is_lookup(insn.target):
            return "lookup"
        return "" if insn.target and not UNBOXED_CALL.begins(self._name(insn.target)) else "kernel"

    def enters_kernel(self, insn: Instruction) -> bool:
        """True if the instruction may enter a kernel: it calls or jumps through a pointer, or calls a function that
        boxes the arguments, runs the profiler's callbacks, or calls the kernel."""
        if insn.kind not in ("call", "jmp") and not insn.is_call:
            return False
        if not insn.target:
            return bool(_pointer(insn))
        name = self._name(insn.target) if insn.is_call else ""
        if KERNEL_FUNCTION.begins(name):  # not optimized
            return name[len(KERNEL_FUNCTION.names[0]) :].startswith(("4callI", "9callBoxedE"))
        return any(family.begins(name) for family in (UNBOXED_CALL, BOXED_WRAPPER, SLOW_PATH))

    def never_returns(self, target: int) -> bool:
        """True if the function at ``target`` raises an exception or ends the process."""
        return self._name(target).startswith(NEVER_RETURNING)

    def _event(self, code: Sequence[Instruction]) -> str:
        """The DispatchEvent's value for the lookup at which ``code`` begins, and which is the only one in it. A call
        asks for step callbacks before it enters the kernel, a redispatch does not (Dispatcher.h)."""
        targets = (insn.target for insn in code[1:] if insn.is_call)  # None or 0: through a pointer, to the kernel
        decisive = (target for target in targets if not target or STEP_CALLBACKS.begins(self._name(target)))
        asks_before_kernel = bool(next(decisive, 0))
        event = "call" if asks_before_kernel else "redispatch"
        return f"{event}Boxed" if only_boxed(self._architecture, code, self._table) else event

    def _lookup(self, code: Sequence[Instruction], handles: Collection[int]) -> tuple[list[int], str, str, str] | None:
        """(indices in ``code`` of the instruction that looks up, register of the keyset, register of the
        OperatorEntry*, form as in LookupSites); None for no lookup, or several that compete."""
        calls = [(index, insn.target) for index, insn in enumerate(code) if insn.is_call and insn.target]
        called = [index for index, target in calls if self.is_lookup(target)]
        inlined = self._inlined(code)
        if called and not inlined:
            this, keyset = self._architecture.argument_registers[:2]
            return called, keyset, this, "call"
        if called or len(inlined) > 1:
            return None
        if inlined:
            index, keyset, entry = inlined[0]
            return [index], keyset, entry, "inlined"
        names = ((index, self._name(target)) for index, target in calls)
        outer = [index for index, name in names if DISPATCHER_REDISPATCH.begins(name) or DISPATCHER_CALL.begins(name)]
        register = self._behind_handle(code, outer[0], handles) if len(outer) == 1 else ""
        return ([outer[0]], register, "", "out of line") if register else None

    def _inlined(self, code: Sequence[Instruction]) -> list[tuple[int, str, str]]:
        """(index in ``code``, register of the keyset, register of the OperatorEntry*) of each inlined lookup: a shift
        by num_backends that an access to the table follows. ``highestPriorityTypeId``, for messages and the profiler,
        has the same shift without such an access."""
        shifts = [
            (index, insn.destination)
            for index, insn in enumerate(code)
            if insn.kind == "shr" and insn.immediate == self.shift and insn.destination
        ]
        ends = [*(index for index, _ in shifts[1:]), len(code)]
        bases = [self._table_base(code[index:end]) for (index, _), end in zip(shifts, ends)]
        return [(index, register, base) for (index, register), base in zip(shifts, bases) if base is not None]

    def _table_base(self, code: Sequence[Instruction]) -> str | None:
        """The register of the OperatorEntry* through which ``code`` accesses ``dispatchTable_``; "" if it is written in
        ``code``, so that it is unknown at its beginning; None without such an access."""
        unlikely = ("", PC_RELATIVE, self._architecture.stack_pointer)
        written: set[str] = set()
        bases: dict[str, str] = {}
        """By a register that clang adds the table's offset to: the register that it was computed from."""
        for insn in code:
            memory = insn.memory
            offset = memory.displacement if memory and memory.base not in unlikely else None
            if memory and offset_in_entry(offset, self._table) is not None:
                return memory.base if memory.base not in written else ""
            is_added = insn.kind == "add" and insn.destination in bases
            if is_added and offset_in_entry(insn.immediate, self._table) is not None:
                return bases[insn.destination]
            for name in insn.writes:
                bases.pop(name, None)
            if insn.kind == "lea" and memory and memory.index_register and memory.base not in unlikely:
                bases[insn.destination] = memory.base if memory.base not in written else ""
            written |= insn.writes
        return None

    def _behind_handle(self, code: Sequence[Instruction], call: int, handles: Collection[int]) -> str:
        """The argument register behind the one into which the code before the call ``code[call]`` puts the address of a
        static OperatorHandle (one of ``handles``): the keyset's; "" without one."""
        arguments = self._architecture.argument_registers[:5]  # a handle and its keyset are among the first five
        for insn in reversed(code[:call]):
            if insn.is_call:
                break
            if insn.kind == "lea" and insn.destination in arguments[:-1] and insn.fixed_operand in handles:
                return arguments[arguments.index(insn.destination) + 1]
        return ""

    @memoized
    def _name(self, target: int) -> str:
        """The first mangled name of the function that a direct call of ``target`` calls, behind a PLT stub if need be;
        "" without a symbol."""
        names = self._symbolizer.names_at(follow_stub(self._memory, target))
        return names[0] if names else ""

    def _invocations(self, code: Sequence[Instruction], lookup: int) -> Iterator[Invocation]:
        """The calls and jumps behind the lookup ``code[lookup]`` that may enter the kernel."""
        for insn in code[lookup + 1 :]:
            if insn.kind not in ("call", "jmp"):
                continue
            after = insn.end if insn.is_call else None
            if not insn.target:
                pointer = _pointer(insn)
                if pointer:
                    yield Invocation(insn.address, after, "kernel", *pointer)
                continue
            inside = code[0].address <= insn.target < code[-1].end
            name = "" if inside else self._name(insn.target)
            if BOXED_WRAPPER.begins(name):
                yield Invocation(insn.address, after, "boxing", pointer="", displacement=0, in_memory=False)
            elif SLOW_PATH.begins(name):
                yield Invocation(insn.address, after, "profiler", pointer="", displacement=0, in_memory=False)

    def _frame(self, code: Sequence[Instruction], position: int) -> CfaRule | None:
        """The rule for the CFA at ``code[position]``, by call frame information, with the frame's least size; None
        without such information."""
        # bytes below the CFA that the straight-line start of the function has taken: never more than it has
        architecture = self._architecture
        size = architecture.call_pushes
        for insn in code[:position]:
            if insn.kind == "push":
                size += 8
            elif insn.kind == "add" and insn.destination == architecture.stack_pointer and (insn.immediate or 0) < 0:
                size -= insn.immediate or 0
                break
            elif insn.kind in ("call", "jmp", "jcc", "ret", "pop", "leave"):
                break
        size = max(size, architecture.call_pushes + 8)
        return cfa_rule_at(architecture, self.tables, code[position].address, size)


def _pointer(insn: Instruction) -> tuple[str, int, bool] | None:
    """(register, displacement, True if that is in memory) of a call or jump through a register, or through the word at
    [register + displacement]; None for any other operand."""
    memory = insn.memory
    if not memory:
        return (insn.source, 0, False) if insn.source else None
    if memory.base in ("", PC_RELATIVE) or memory.index_register:
        return None
    return memory.base, memory.displacement, True
