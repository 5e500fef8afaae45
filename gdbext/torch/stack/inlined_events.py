"""The events of dispatches that were inlined into other code: call or redispatch, boxed or not, proven by that code.

``Dispatcher::call`` and ``callBoxed`` ask for the step callbacks right before they call the kernel, the redispatches do
not (Dispatcher.h, 2.13.0). So the code that may lead to the call of the kernel is followed backwards: all of its paths
meet that question, or none does. ``KernelFunction::call`` tests whether there is an unboxed function before it boxes
the arguments; ``callBoxed`` does not (KernelFunction_impl.h). If the paths disagree, the event is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.arch.instruction import PC_RELATIVE, Instruction
from gdbext.engine.process.code_reader import FunctionInstructions
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Function, Symbolizer
from gdbext.engine.unwind import NativeStack
from gdbext.torch.assumed_symbols import (
    DISPATCHER_CALL_BOXED_FOR_KEY,
    HANDLE_CALL_BOXED_FOR_KEY,
    KERNEL_FOR_KEY,
    LOOKUP,
    NEVER_RETURNING,
    STEP_CALLBACKS,
)
from gdbext.torch.memoized import memoized
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.stack import DispatchEvent
from gdbext.torch.stack.call_arguments import CallSites, follow_stub
from gdbext.torch.stack.dispatch_calls import DispatchCall
from gdbext.torch.stack.roles import is_python_dispatcher

_BOXED_AT, _UNBOXED_AT, _SYM_UNBOXED_AT = 8, 16, 24
"""Offsets in c10::KernelFunction, behind the functor; its layout is checked by ``registry.kernel``."""
_NO_FALLTHROUGH = ("jmp", "ret", "trap")
KEYSET_BITS = 64
"""clang folds the 64 of "64 - leading zeros", which becomes the index, into the table's offset."""


class BackwardReach(NamedTuple):
    """What the control-flow paths to a kernel's call site meet first, followed backwards from it; several members are
    True if paths differ."""

    asks: bool
    """A call of at::getStepCallbacksUnlessEmpty."""
    other_call: bool
    """Another call through a pointer: an earlier dispatch in the same function."""
    begins: bool
    """The beginning of the function."""
    tests_unboxed: bool | None
    """True: unboxed_kernel_func_ is loaded and branched on; False: it is never loaded; None: no branch follows."""

    @property
    def is_call(self) -> bool | None:
        """True for a call, which asks for step callbacks first; False for a redispatch; None if the paths disagree."""
        if self.asks:
            return None if self.other_call or self.begins else True
        return False if self.other_call or self.begins else None


def backward_reach(
    architecture: Architecture,
    code: FunctionInstructions,
    return_address: int,
    asks: Callable[[int], bool],
    never_returns: Callable[[int], bool] = lambda _: False,
    is_lookup: Callable[[Instruction], bool] = lambda _: False,
) -> BackwardReach | None:
    """What the paths to the call that returns to ``return_address`` meet; None if the code has no such call.

    ``asks`` and ``never_returns`` take the target of a direct call: it is at::getStepCallbacksUnlessEmpty, or does not
    return. ``is_lookup``: the instruction is part of a lookup; no code before it can test the kernel.
    """

    def event_of(insn: Instruction) -> str:
        """The member of BackwardReach that the instruction makes True; "" for none: the path goes on."""
        if not insn.is_call:
            return ""
        target = insn.target or insn.fixed_operand
        if not target:
            return "other_call"
        return "asks" if asks(target) else ""

    def event_or_lookup(insn: Instruction) -> str:
        return event_of(insn) or ("lookup" if is_lookup(insn) else "")

    reached = walk_cfg_back(code.instructions, return_address, event_of, never_returns)
    near = walk_cfg_back(code.instructions, return_address, event_or_lookup, never_returns)
    if not reached or not near:
        return None
    met, seen = reached
    if "lookup" in near[0]:
        seen = near[1]
    tests_unboxed: bool | None = False
    for number in seen:
        insn = code.instructions[number]
        memory = insn.memory
        is_read = not insn.stored and not insn.is_call and insn.kind not in ("lea", "push", *_NO_FALLTHROUGH)
        if not memory or memory.displacement != _UNBOXED_AT or memory.index_register or not is_read:
            continue
        if memory.base not in ("", architecture.stack_pointer):  # it loads the word at +16 of an object
            following = code.instructions[number + 1 : number + 5]  # the jump that depends on it is that close
            leaving = (step for step in following if step.kind in ("jcc", *_NO_FALLTHROUGH) or step.is_call)
            first = next(leaving, None)
            is_branched_on = first is not None and first.kind == "jcc"
            tests_unboxed = True if is_branched_on or tests_unboxed else None
    return BackwardReach("asks" in met, "other_call" in met, "begins" in met, tests_unboxed)


def walk_cfg_back(
    instructions: Sequence[Instruction],
    return_address: int,
    event_of: Callable[[Instruction], str],
    never_returns: Callable[[int], bool],
) -> tuple[set[str], set[int]] | None:
    """Follow the code backwards from the call that returns to ``return_address``; None if there is no such call.

    Each path ends at the first instruction for which ``event_of`` returns a word. Returns these words, with "begins" if
    a path reaches the beginning of the code, and the numbers of all instructions between.
    """
    start = next((n for n, insn in enumerate(instructions) if insn.end == return_address and insn.is_call), None)
    if start is None:
        return None
    jumps_to: dict[int, list[int]] = {}
    for number, insn in enumerate(instructions):
        if insn.kind in ("jmp", "jcc") and insn.target:
            jumps_to.setdefault(insn.target, []).append(number)
    met: set[str] = set()
    seen: set[int] = set()
    frontier = [start]
    while frontier:
        number = frontier.pop()
        predecessors = list(jumps_to.get(instructions[number].address, ()))
        if number == 0:
            met.add("begins")
        elif instructions[number - 1].kind not in _NO_FALLTHROUGH:
            previous = instructions[number - 1]
            target = (previous.target or previous.fixed_operand) if previous.is_call else 0
            predecessors += [] if target and never_returns(target) else [number - 1]
        for predecessor in predecessors:
            event = event_of(instructions[predecessor])
            if event:
                met.add(event)
            elif predecessor not in seen:
                seen.add(predecessor)
                frontier.append(predecessor)
    return met, seen


def offset_in_entry(offset: int | None, table: range) -> int | None:
    """Offset in a KernelFunction of the member that an indexed access at ``offset`` of an OperatorEntry names; None if
    the access is not to the dispatch table. ``table`` is the range of offsets of the table's first entry."""
    if offset is None:
        return None
    candidates = (offset, offset - KEYSET_BITS * len(table))
    return next((candidate - table.start for candidate in candidates if candidate in table), None)


def only_boxed(architecture: Architecture, code: Sequence[Instruction], table: range) -> bool:
    """True if ``code``, whose first instruction looks a kernel up, enters it by its boxed function whatever it has
    besides (``callBoxed``). ``table`` is the range of offsets of ``OperatorEntry::dispatchTable_``'s first entry."""
    kernel = {architecture.result_register} if code[0].is_call else set()
    """Registers that hold the address of the KernelFunction."""
    boxed: set[str | None] = set()
    """Registers that hold the address of its boxed function."""
    for insn in code[1:]:
        member = None  # offset in the KernelFunction that the instruction's memory operand names
        if insn.memory and insn.kind in ("mov", "call", "jmp"):
            displacement = insn.memory.displacement
            member = displacement if insn.memory.base in kernel else offset_in_entry(displacement, table)
        if member in (_UNBOXED_AT, _SYM_UNBOXED_AT):
            return False
        if insn.kind in ("call", "jmp") and not insn.target:
            return member == _BOXED_AT or insn.source in boxed
        is_entry = insn.kind == "add" and offset_in_entry(insn.immediate, table) == 0
        if insn.kind == "lea" and insn.memory:
            is_entry = offset_in_entry(insn.memory.displacement, table) == 0
        is_copy = insn.kind == "mov" and insn.source in kernel
        kernel = kernel.intersection(architecture.callee_saved) if insn.is_call else kernel - insn.writes
        boxed -= insn.writes
        if insn.destination and (is_entry or is_copy):
            kernel.add(insn.destination)
        elif insn.destination and insn.kind == "mov" and member == _BOXED_AT:
            boxed.add(insn.destination)
    return False


class InlinedDispatchEvents:
    """Tells the events of inlined dispatches, and the frames of a dispatch without symbols, for one process."""

    def __init__(
        self,
        memory: Memory,
        symbolizer: Symbolizer,
        sites: CallSites,
        num_backends: int | None,
        table: range = range(0),
    ) -> None:
        """``num_backends`` is None without a layout; ``table`` is the range of offsets of
        ``OperatorEntry::dispatchTable_``'s first entry."""
        self._table = table
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._num_backends = num_backends
        self._callbacks = STEP_CALLBACKS.address(symbolizer)
        # by the return address of a call
        self._kernel_is_for_key: dict[int, bool] = {}
        self._reach_before: dict[int, BackwardReach | None] = {}

    def event(
        self, stack: NativeStack, call: DispatchCall, kernel: KernelFunction | None, boxed_entry: bool
    ) -> DispatchEvent | None:
        """The event of an inlined dispatch that entered its ``kernel``; None if nothing proves it.

        ``boxed_entry``: the kernel was entered by its boxed function.
        """
        if self.is_for_key(stack, call):
            return DispatchEvent.CALL_BOXED  # boxed, whatever the kernel has besides
        is_call = self.is_call(stack, call)
        boxed = self._is_boxed(stack, call, kernel) if boxed_entry else False
        if is_call is None or boxed is None:
            return None
        if is_call:
            return DispatchEvent.CALL_BOXED if boxed else DispatchEvent.CALL
        return DispatchEvent.REDISPATCH_BOXED if boxed else DispatchEvent.REDISPATCH

    def _is_boxed(self, stack: NativeStack, call: DispatchCall, kernel: KernelFunction | None) -> bool | None:
        """True if the caller of a kernel that was entered by its boxed function boxed the arguments itself
        (``callBoxed``, ``redispatchBoxed``); False if a layer of the dispatcher did; None if nothing tells."""
        if kernel and (kernel.unboxed or kernel.sym_unboxed):
            return True  # unboxed arguments would have gone to the unboxed function
        lookup_level, layer = call.header[0], call.header[-1]
        if len(call.header) > 1:
            # boxed if the boxed stack lies at or above the lookup frame's SP: it was passed in. Else a layer made it
            address = self._sites.argument(stack, layer, 3)  # behind functor, operator and keyset
            if stack.function(layer):
                return False  # a layer that boxes, by its name
            return None if address is None else address >= stack.frames[lookup_level].sp
        reach = self._backward_reach(stack, lookup_level)
        return None if not reach or reach.tests_unboxed is None else not reach.tests_unboxed

    def is_call(self, stack: NativeStack, call: DispatchCall) -> bool | None:
        """``Dispatcher::call`` or ``callBoxed``, by the code of the frame that looks the kernel up; False for a
        redispatch, None if it is unknown."""
        level = call.header[0]
        if self.is_for_key(stack, call):
            return True
        if not self._dispatches(self._sites.function(stack, level)):
            return None
        reach = self._backward_reach(stack, level)
        return reach.is_call if reach else None

    def may_look_up(self, stack: NativeStack, level: int) -> bool:
        """True if the code of frame ``level`` looks a kernel up, or cannot be read; the function's name is not
        considered."""
        function = self._sites.function(stack, level)
        if not function:
            return False
        is_read = bool(self._sites.decoded(function).calls)
        # autograd's Node::operator() asks for callbacks, too
        return not is_read or self._looks_up(function, False)

    def is_for_key(self, stack: NativeStack, call: DispatchCall) -> bool:
        """True for ``callBoxedForDispatchKey``, which calls the kernel of a key that was named, whatever its keyset.

        In an inlined dispatch, some path to the call leads from the function that returns the kernel of a key, without
        another lookup between: the function of the frame may make ordinary calls, too.
        """
        mangled = call.mangled
        if DISPATCHER_CALL_BOXED_FOR_KEY.begins(mangled) or HANDLE_CALL_BOXED_FOR_KEY.begins(mangled):
            return True
        if not call.is_inlined:
            return False
        level = call.header[0]
        if is_python_dispatcher(stack, level):
            return True
        pc = stack.frames[level].pc
        if pc not in self._kernel_is_for_key:
            code = self._sites.code(stack, level)
            reached = None
            if any(map(self._returns_kernel_for_key, self._call_targets(code.calls))):
                reached = walk_cfg_back(code.instructions, pc, self._kernel_origin, self._never_returns)
            self._kernel_is_for_key[pc] = bool(reached and "for key" in reached[0])
        return self._kernel_is_for_key[pc]

    def _kernel_origin(self, insn: Instruction) -> str:
        """The origin of the kernel that is called after this instruction: "for key" or "looked up"; "other call" for a
        call through an unknown pointer, "" if the instruction says nothing."""
        if not insn.is_call:
            return "looked up" if self._is_part_of_lookup(insn) else ""
        target = next(self._call_targets((insn,)), 0)
        if not target:
            return "other call"
        if self._returns_kernel_for_key(target):
            return "for key"
        return "looked up" if self._is_lookup(target) else ""

    def asks_for_callbacks(self, stack: NativeStack, level: int) -> bool:
        """True if the function of frame ``level`` asks for step callbacks somewhere, as all that call operators do."""
        calls = self._sites.code(stack, level).calls
        return any(self._is_get_step_callbacks(call.target) for call in calls if call.target)

    def layers(self, stack: NativeStack, level: int) -> list[int]:
        """Levels of the frames of an inlined dispatch that calls its kernel from frame ``level``, the outermost first:
        without symbols there may be frames between the function that looks the kernel up and the one that calls it.

        [] if no code looks a kernel up there: what is called is no kernel then, but a wrapper's own function.
        """
        levels = [level]
        while not self._dispatches(self._sites.function(stack, levels[0])):
            outer = levels[0] + 1
            # up to three are between (KernelFunction::call, boxing)
            if stack.function(level) or len(levels) > 3 or outer >= len(stack):
                return []
            layer = self._sites.function(stack, levels[0])
            if not layer or self._sites.direct_target(stack, outer) != layer.start:
                return []
            levels.insert(0, outer)
        return levels

    def _backward_reach(self, stack: NativeStack, level: int) -> BackwardReach | None:
        """What the paths to the call that frame ``level`` made meet; None if its code has no such call."""
        pc = stack.frames[level].pc
        if pc not in self._reach_before:
            self._reach_before[pc] = backward_reach(
                self._memory.architecture,
                self._sites.code(stack, level),
                pc,
                self._is_get_step_callbacks,
                self._never_returns,
                self._shifts,
            )
        return self._reach_before[pc]

    @memoized
    def _never_returns(self, target: int) -> bool:
        """True if ``target``, a function or the slot of an import, raises an exception or ends the process."""
        addresses = {follow_stub(self._memory, target), self._memory.try_u64(target) or 0}
        names = (name for address in addresses for name in self._symbolizer.names_at(address))
        return any(name.startswith(NEVER_RETURNING) for name in names)

    @memoized
    def _is_get_step_callbacks(self, target: int) -> bool:
        """True if ``target``, a function or the slot of an import, is at::getStepCallbacksUnlessEmpty."""
        leads_to = (follow_stub(self._memory, target), self._memory.try_u64(target))
        return self._callbacks != 0 and self._callbacks in leads_to

    @memoized
    def _dispatches(self, function: Function | None) -> bool:
        """True if the function contains a lookup, or calls one. A function of PyTorch that has a name, or one with a
        name whose code has no known call, is trusted to do so."""
        if not function:
            return False
        in_torch = function.module.name.startswith("libtorch")
        is_trusted = bool(function.names) and (in_torch or not self._sites.decoded(function).calls)
        return is_trusted or self._looks_up(function, True)

    @memoized
    def _looks_up(self, function: Function, by_callbacks: bool) -> bool:
        """True if the function's code looks a kernel up, or calls a function that does. ``by_callbacks``: callers of
        at::getStepCallbacksUnlessEmpty count, too."""
        code = self._sites.decoded(function)
        if any(map(self._is_part_of_lookup, code.instructions)):
            return True
        return any(
            self._is_lookup(target)
            or self._returns_kernel_for_key(target)
            or (by_callbacks and self._is_get_step_callbacks(target))
            for target in self._call_targets(code.calls)
        )

    def _call_targets(self, calls: Iterable[Instruction]) -> Iterator[int]:
        """Addresses of the functions that ``calls`` call directly, or through the slots of imports (-fno-plt)."""
        for call in calls:
            slot = call.fixed_operand
            target = call.target or (slot and self._memory.try_u64(slot))
            if target:
                yield target

    @memoized
    def _returns_kernel_for_key(self, target: int) -> bool:
        """True if ``target`` is ``OperatorEntry::kernelForDispatchKey``."""
        names = self._symbolizer.names_at(follow_stub(self._memory, target))
        return any(map(KERNEL_FOR_KEY.begins, names))

    def _is_lookup(self, target: int) -> bool:
        """True if ``target`` is an ``OperatorEntry::lookup`` that was not inlined, by its name or its code."""
        address = follow_stub(self._memory, target)
        if any(LOOKUP.begins(name) for name in self._symbolizer.names_at(address)):
            return True
        function = self._sites.function_at(address)
        if not function or function.start != address or function.names or function.size > 512:  # a lookup is smaller
            return False
        return any(map(self._is_part_of_lookup, self._sites.decoded(function).instructions))

    def _shifts(self, insn: Instruction) -> bool:
        """True if the instruction shifts a word by the number of backends: the keyset, in
        ``DispatchKeySet::highestFunctionalityKey``."""
        return insn.kind == "shr" and insn.immediate == self._num_backends

    def _is_part_of_lookup(self, insn: Instruction) -> bool:
        """True if the instruction shifts the keyset, or accesses an entry of a dispatch table by an index: for a
        constant keyset only that is left of a lookup."""
        memory = insn.memory
        if self._shifts(insn):
            return True
        if not memory or not memory.index_register or insn.kind not in ("mov", "lea") or insn.stored:
            return False
        is_object = memory.base not in ("", PC_RELATIVE, self._memory.architecture.stack_pointer)
        return is_object and offset_in_entry(memory.displacement, self._table) is not None
