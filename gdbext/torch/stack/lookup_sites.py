"""Finds the places in a function with an inlined dispatcher where a keyset can be read: one instruction per dispatch.

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

from collections.abc import Collection, Sequence
from typing import NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.arch.instruction import PC_RELATIVE, Instruction
from gdbext.engine.process.code_reader import CodeReader
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Function, Symbolizer
from gdbext.engine.unwind.frame_steps import CfaRule, FrameTables, frame_at
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
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.stack.inlined_events import offset_in_entry, only_boxed

FUNCTION_LIMIT = 1 << 16
"""Bytes of a function that are decoded."""

_WORD = 8
_HANDLE_ARGUMENTS = 5
"""Arguments among which a handle and the keyset behind it are looked for."""


class Invocation(NamedTuple):
    """A call or jump through which the function may enter a kernel.

    ``through`` is "kernel" (the table's pointer itself), "boxing" (``BoxedKernelWrapper``) or "profiler" (the slow
    path, which calls the kernel while RecordFunction callbacks are active). For "kernel" the pointer is the register
    ``pointer``, or the word at ``pointer`` + ``displacement`` where ``in_memory``.
    """

    address: int
    after: int | None
    through: str
    pointer: str
    displacement: int
    in_memory: bool


class LookupSites(NamedTuple):
    """The sites of one function: the lookup, the invocations behind it and the returns."""

    lookup: int
    keyset: str
    entry: str
    """The register that holds the OperatorEntry* there; "" where it is not known."""
    frame: CfaRule
    how: str
    invocations: tuple[Invocation, ...]
    returns: tuple[int, ...]
    tail_calls: bool
    """It may jump to the kernel, so that its return cannot be seen."""
    others: tuple[tuple[int, CfaRule], ...] = ()
    """The same lookup in other branches of the function: each dispatch passes exactly one of all."""


class FoundLookup(NamedTuple):
    """One lookup of a function that may have many. ``event`` is what it is made for, a DispatchEvent's value."""

    sites: LookupSites
    event: str


_LOOKUP_LIMIT = 1 << 10
"""Bytes of a copy of ``OperatorEntry::lookup`` at most; it has 270."""


class SiteFinder:
    """Decodes functions of one process."""

    def __init__(
        self,
        memory: Memory,
        modules: ModuleTable,
        symbolizer: Symbolizer,
        num_backends: int,
        table: range,
    ) -> None:
        """``table`` is the range of offsets of ``OperatorEntry::dispatchTable_``'s first entry."""
        self._memory = memory
        self._architecture = memory.architecture
        self.tables = FrameTables(memory, modules)
        self._files = CodeReader(memory, modules)
        self._symbolizer = symbolizer
        self.shift = num_backends
        self._table = table
        self._called: dict[int, str] = {}
        self._copies: dict[int, bool] = {}
        self._last: tuple[int, int, list[Instruction]] = 0, 0, []

    def find(self, start: int, size: int, handles: Collection[int] = ()) -> LookupSites | None:
        """The sites of the function at ``start``; None where no form is recognised or two lookups compete.

        ``handles`` are the addresses of the function's static OperatorHandles. Raises MemoryFault.
        """
        code = self._decoded(start, min(size, FUNCTION_LIMIT))
        found = self._lookup(code, handles)
        if not found:
            return None
        positions, keyset, entry, how = found
        position = positions[0]
        frames = [self._frame(code, each) for each in positions]
        frame = frames[0]
        if not frame or None in frames:
            return None
        end = start + size
        invocations = tuple(self._invocations(code, position))
        tail = any(one.after is None for one in invocations)
        if tail:
            frame = frame._replace(size=self._architecture.call_pushes)
        others = tuple((code[each].address, rule) for each, rule in zip(positions[1:], frames[1:]) if rule)
        returns = tuple(one.address for one in code if one.kind == "ret" and start <= one.address < end)
        return LookupSites(code[position].address, keyset, entry, frame, how, invocations, returns, tail, others)

    # --- all lookups of a function ---------------------------------------------------------------

    def each(self, function: Function) -> list[FoundLookup]:
        """Every lookup in a function, whatever operators they are for. Raises MemoryFault.

        A call asks for the callbacks of profilers before it enters the kernel, a redispatch does not (Dispatcher.h).
        """
        code = self._decoded(function.start, min(function.size, FUNCTION_LIMIT))
        this, keyset = self._architecture.argument_registers[:2]
        targets = ((index, one.target) for index, one in enumerate(code) if one.is_call and one.target)
        called = [(index, keyset, this) for index, target in targets if self.is_lookup(target)]
        places = sorted([*called, *(each for each in self._inlined(code) if each[2])])
        ends = [*(index for index, _, _ in places[1:]), len(code)]
        found = []
        for (index, bits, entry), end in zip(places, ends):
            frame = self._frame(code, index)
            if frame:
                how = "call" if code[index].is_call else "inlined"
                invoked = tuple(self._invocations(code[:end], index))
                returns = tuple(one.address for one in code if one.kind == "ret")
                sites = LookupSites(code[index].address, bits, entry, frame, how, invoked, returns, False)
                found.append(FoundLookup(sites, self._event(code[index:end])))
        return found

    def is_lookup(self, target: int) -> bool:
        """A copy of ``OperatorEntry::lookup`` by its name, or without a name by its code: it looks the keyset that it
        is given up in the table that it is given, and calls nothing through a pointer."""
        if target not in self._copies:
            name = self._name(target)
            self._copies[target] = LOOKUP.begins(name) if name else self._is_nameless_lookup(target)
        return self._copies[target]

    def _is_nameless_lookup(self, target: int) -> bool:
        address = follow_stub(self._memory, target)
        function = self.tables.extent(address)
        if not function or function.start != address or not 0 < function.size <= _LOOKUP_LIMIT:
            return False
        try:
            code = self._decoded(address, function.size)
        except MemoryFault:
            return False
        enters = any(one.is_call and not one.target for one in code)
        return not enters and len(self._inlined(code)) == 1

    def code(self, span: range) -> list[Instruction]:
        """The instructions of a function; none where it cannot be read."""
        try:
            return self._decoded(span.start, min(len(span), FUNCTION_LIMIT))
        except MemoryFault:
            return []

    def _decoded(self, start: int, size: int) -> list[Instruction]:
        """The instructions in memory; those in the file where a trap is among them, which may be that of a kernel probe
        or of somebody's breakpoint. They are kept until others are asked for. Raises MemoryFault."""
        if self._last[:2] != (start, size):
            self._last = start, size, self._decode(start, size)
        return self._last[2]

    def _decode(self, start: int, size: int) -> list[Instruction]:
        raw = self._memory.read(start, size)
        code = list(self._architecture.decode(raw, start))
        if any(one.kind == "trap" for one in code):
            code = list(self._architecture.decode(self._files.read(start, size) or raw, start))
        return [self._bound(one) for one in code]

    def _bound(self, one: Instruction) -> Instruction:
        """Give it the target of a call or jump through the slot of an import, which then is as good as a direct one."""
        slot = one.fixed_operand if one.kind in ("call", "jmp") else 0
        target = self._files.imported(slot) if slot else 0
        return one._replace(target=target) if target else one

    def dispatch_step(self, one: Instruction) -> str:
        """ "lookup" where an instruction looks a kernel up, "kernel" where it may enter one, or what boxes its
        arguments; else ""."""
        if one.is_call and not one.target:
            return "kernel"
        if one.is_call:
            if self.is_lookup(one.target):
                return "lookup"
            return "kernel" if UNBOXED_CALL.begins(self._name(one.target)) else ""
        return "lookup" if one.kind == "shr" and one.immediate == self.shift else ""

    def enters_kernel(self, one: Instruction) -> bool:
        """The instruction calls or jumps through a pointer, or calls what boxes arguments, profiles or enters a
        kernel."""
        if one.kind not in ("call", "jmp") and not one.is_call:
            return False
        if not one.target:
            return bool(_pointer(one))
        name = self._name(one.target) if one.is_call else ""
        if KERNEL_FUNCTION.begins(name):  # not optimised
            return name[len(KERNEL_FUNCTION.names[0]) :].startswith(("4callI", "9callBoxedE"))
        return any(family.begins(name) for family in (UNBOXED_CALL, BOXED_WRAPPER, SLOW_PATH))

    def never_returns(self, target: int) -> bool:
        """A call of that address does not come back."""
        return self._name(target).startswith(NEVER_RETURNING)

    def _event(self, code: Sequence[Instruction]) -> str:
        """The event of the lookup at which the code begins; the next lookup is behind its end."""
        is_call = False
        for one in code[1:]:
            if one.is_call and (not one.target or STEP_CALLBACKS.begins(self._name(one.target))):
                is_call = bool(one.target)
                break
        event = "call" if is_call else "redispatch"
        return f"{event}Boxed" if only_boxed(self._architecture, code, self._table) else event

    # --- the lookup ------------------------------------------------------------------------------

    def _lookup(self, code: Sequence[Instruction], handles: Collection[int]) -> tuple[list[int], str, str, str] | None:
        """(positions, register of the keyset, register of the OperatorEntry*, form)."""
        names = [(index, self._name(one.target)) for index, one in enumerate(code) if one.is_call and one.target]
        called = [index for index, one in enumerate(code) if one.is_call and one.target and self.is_lookup(one.target)]
        inlined = self._inlined(code)
        if called and not inlined:
            this, keyset = self._architecture.argument_registers[:2]
            return called, keyset, this, "call"
        if called or len(inlined) > 1:
            return None
        if inlined:
            index, keyset, entry = inlined[0]
            return [index], keyset, entry, "inlined"
        outer = [index for index, name in names if DISPATCHER_REDISPATCH.begins(name) or DISPATCHER_CALL.begins(name)]
        if len(outer) == 1:
            register = self._behind_handle(code, outer[0], handles)
            return ([outer[0]], register, "", "out of line") if register else None
        return None

    def _inlined(self, code: Sequence[Instruction]) -> list[tuple[int, str, str]]:
        """(position, keyset, OperatorEntry*) of each shift by num_backends that an access to the table follows.

        ``highestPriorityTypeId`` has the same shift, for messages and for the profiler, and no such access.
        """
        shifts = [
            (index, one.destination)
            for index, one in enumerate(code)
            if one.kind == "shr" and one.immediate == self.shift and one.destination
        ]
        found = []
        for number, (index, register) in enumerate(shifts):
            end = shifts[number + 1][0] if number + 1 < len(shifts) else len(code)
            entry = self._table_base(code[index:end])
            if entry is not None:
                found.append((index, register, entry))
        return found

    def _table_base(self, code: Sequence[Instruction]) -> str | None:
        """The register through which ``dispatchTable_`` is accessed; "" where it is loaded late; None: no access."""
        unlikely = ("", PC_RELATIVE, self._architecture.stack_pointer)
        written: set[str] = set()
        bases: dict[str, str] = {}
        for one in code:
            memory = one.memory
            if memory and self._is_entry(memory.displacement) and memory.base not in unlikely:
                return memory.base if memory.base not in written else ""
            if one.kind == "add" and one.destination in bases and self._is_entry(one.immediate):
                return bases[one.destination]
            for name in one.writes:
                bases.pop(name, None)
            if one.kind == "lea" and memory and memory.index_register and memory.base not in unlikely:
                bases[one.destination] = memory.base if memory.base not in written else ""  # clang adds the offset
            written |= one.writes
        return None

    def _is_entry(self, offset: int | None) -> bool:
        return offset_in_entry(offset, self._table) is not None

    def _behind_handle(self, code: Sequence[Instruction], call: int, handles: Collection[int]) -> str:
        """The argument register behind the one that is given the address of the operator's static handle."""
        arguments = self._architecture.argument_registers[:_HANDLE_ARGUMENTS]
        for one in reversed(code[:call]):
            if one.is_call:
                break
            if one.kind == "lea" and one.destination in arguments[:-1] and one.fixed_operand in handles:
                return arguments[arguments.index(one.destination) + 1]
        return ""

    def _name(self, target: int) -> str:
        """The first mangled name of what a direct call leads to, through a PLT stub if need be."""
        if target not in self._called:
            names = self._symbolizer.names_at(follow_stub(self._memory, target))
            self._called[target] = names[0] if names else ""
        return self._called[target]

    # --- kernels and returns ---------------------------------------------------------------------

    def _invocations(self, code: Sequence[Instruction], lookup: int) -> list[Invocation]:
        found = []
        for index, one in enumerate(code):
            if index <= lookup or one.kind not in ("call", "jmp"):
                continue
            after = one.end if one.is_call else None
            if not one.target:
                place = _pointer(one)
                if place:
                    found.append(Invocation(one.address, after, "kernel", *place))
                continue
            inside = code[0].address <= one.target < code[-1].end
            name = "" if inside else self._name(one.target)
            through = "boxing" if BOXED_WRAPPER.begins(name) else "profiler" if SLOW_PATH.begins(name) else ""
            if through:
                found.append(Invocation(one.address, after, through, "", 0, False))
        return found

    # --- the frame -------------------------------------------------------------------------------

    def _frame(self, code: Sequence[Instruction], position: int) -> CfaRule | None:
        """The frame, by the call frame information of the lookup's address."""
        return frame_at(
            self._architecture,
            self.tables,
            code[position].address,
            _prologue_size(self._architecture, code[:position]),
        )


def _pointer(one: Instruction) -> tuple[str, int, bool] | None:
    """The operand of a call or jump through a register, or through [register + displacement]."""
    memory = one.memory
    if not memory:
        return (one.source, 0, False) if one.source else None
    if memory.base in ("", PC_RELATIVE) or memory.index_register:
        return None
    return memory.base, memory.displacement, True


def _prologue_size(architecture: Architecture, code: Sequence[Instruction]) -> int:
    """Bytes below the CFA that the straight-line start of the function has taken: never more than it has."""
    top = architecture.stack_pointer
    size = architecture.call_pushes
    for one in code:
        if one.kind == "push":
            size += _WORD
        elif one.kind == "add" and one.destination == top and one.immediate is not None and one.immediate < 0:
            return size - one.immediate
        elif one.kind in ("call", "jmp", "jcc", "ret", "pop", "leave"):
            break
    return max(size, architecture.call_pushes + _WORD)
