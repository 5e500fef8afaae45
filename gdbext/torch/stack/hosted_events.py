"""The events of dispatches that were inlined into other code, and the layers of code without symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.engine.arch.instruction import PC_RELATIVE, Instruction
from gdbext.torch.assumed_symbols import (
    DISPATCHER_CALL_BOXED_FOR_KEY,
    HANDLE_CALL_BOXED_FOR_KEY,
    KERNEL_FOR_KEY,
    LOOKUP,
    NEVER_RETURNING,
    STEP_CALLBACKS,
)
from gdbext.torch.stack import DispatchEvent
from gdbext.torch.stack.call_arguments import CallSites, follow_stub
from gdbext.torch.stack.event_proof import offset_in_entry, walk_back, ways_back
from gdbext.torch.stack.known_fallbacks import is_python_dispatcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Function, Symbolizer
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.registry.kernel import KernelFunction
    from gdbext.torch.stack.dispatch_calls import DispatchCall
    from gdbext.torch.stack.event_proof import WaysBack

_FOR_KEY = (DISPATCHER_CALL_BOXED_FOR_KEY, HANDLE_CALL_BOXED_FOR_KEY)
_MAX_LAYERS = 3
"""Functions between the one that looks the kernel up and the one that calls it (KernelFunction::call, boxing)."""
_SMALL = 512
"""Bytes of an ``OperatorEntry::lookup`` that was not inlined."""
_BOXED_STACK = 3
"""Number of the argument of a boxed kernel that is the boxed stack: functor, operator, keyset, stack."""


class HostedEvents:
    """Answers for stacks of one process."""

    def __init__(
        self,
        memory: Memory,
        symbolizer: Symbolizer,
        sites: CallSites,
        num_backends: int | None,
        table: range = range(0),
    ) -> None:
        """``table`` is the range of offsets of ``OperatorEntry::dispatchTable_``'s first entry."""
        self._table = table
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._num_backends = num_backends
        self._callbacks = STEP_CALLBACKS.address(symbolizer)
        self._asking: dict[int, bool] = {}
        """Answers by the target of a call."""
        self._giving: dict[int, bool] = {}
        """Answers by the target of a call."""
        self._given: dict[int, bool] = {}
        """Answers by the return address."""
        self._looking: dict[int, bool] = {}
        self._dispatching: dict[int, bool] = {}
        """Answers by the start of a function; the first ones by its code alone."""
        self._for_key: dict[int, bool] = {}
        """Answers by the start of a function."""
        self._endings: dict[int, bool] = {}
        """The functions that never come back, by the target of a call."""
        self._ways: dict[int, WaysBack | None] = {}
        """Ways by the return address."""

    def of(
        self, stack: NativeStack, call: DispatchCall, kernel: KernelFunction | None, boxed_entry: bool
    ) -> DispatchEvent | None:
        """The event of a hosted call whose kernel was entered; None where nothing proves it."""
        if self.is_for_key(stack, call):
            return DispatchEvent.CALL_BOXED  # boxed, whatever the kernel has besides
        is_call = self.is_call(stack, call)
        boxed = self._is_boxed(stack, call, kernel, boxed_entry)
        if is_call is None or boxed is None:
            return None
        if is_call:
            return DispatchEvent.CALL_BOXED if boxed else DispatchEvent.CALL
        return DispatchEvent.REDISPATCH_BOXED if boxed else DispatchEvent.REDISPATCH

    def is_call(self, stack: NativeStack, call: DispatchCall) -> bool | None:
        """``Dispatcher::call`` or ``callBoxed``, by the code of the frame that looks the kernel up."""
        level = call.header[0]
        if self.is_for_key(stack, call):
            return True
        if not self._dispatches(self._sites.function(stack, level)):
            return None
        ways = self._ways_back(stack, level)
        return ways.is_call if ways else None

    def looks_up(self, stack: NativeStack, level: int) -> bool:
        """The code of the frame looks a kernel up, whatever the function is called."""
        function = self._sites.function(stack, level)
        if not function:
            return False
        if function.start not in self._looking:
            is_read = bool(self._sites.decoded(function).calls)
            self._looking[function.start] = not is_read or self._looks_up(function, by_callbacks=False)
        return self._looking[function.start]

    def is_for_key(self, stack: NativeStack, call: DispatchCall) -> bool:
        """``callBoxedForDispatchKey``: it calls the kernel of a key that was named, whatever keyset it makes."""
        if any(family.begins(call.mangled) for family in _FOR_KEY):
            return True
        if not call.hosted:
            return False
        level = call.header[0]
        return is_python_dispatcher(stack, level) or self._is_given(stack, level)

    def _asks_for_key(self, function: Function | None) -> bool:
        """The function calls the one that gives the kernel of a key. A deep stack asks at each of its levels."""
        if not function:
            return False
        if function.start not in self._for_key:
            targets = self._called(self._sites.decoded(function).calls)
            self._for_key[function.start] = any(map(self._gives_kernel, targets))
        return self._for_key[function.start]

    def asks_for_callbacks(self, stack: NativeStack, level: int) -> bool:
        """The function of the frame asks for step callbacks somewhere."""
        return any(self._asks(one.target) for one in self._sites.code(stack, level).calls if one.target)

    def layers(self, stack: NativeStack, level: int) -> list[int]:
        """The frames of a hosted call that reaches its kernel from frame ``level``, the outermost first.

        [] where no code looks a kernel up there: what is called is no dispatch then, but a wrapper's own function.

        Code without symbols may have functions between the one that looks the kernel up and the one that calls it.
        """
        found = [level]
        while not self._dispatches(self._sites.function(stack, found[0])):
            outer = found[0] + 1
            if stack.function(level) or len(found) > _MAX_LAYERS or outer >= len(stack):
                return []
            layer = self._sites.function(stack, found[0])
            if not layer or self._sites.direct_target(stack, outer) != layer.start:
                return []
            found.insert(0, outer)
        return found

    # --- boxed or not ----------------------------------------------------------------------------

    def _is_boxed(
        self, stack: NativeStack, call: DispatchCall, kernel: KernelFunction | None, boxed_entry: bool
    ) -> bool | None:
        if not boxed_entry:
            return False
        if kernel and (kernel.unboxed or kernel.sym_unboxed):
            return True  # unboxed arguments would have gone to the unboxed function
        if len(call.header) > 1:
            return self._given_to_layers(stack, call)
        ways = self._ways_back(stack, call.header[0])
        return None if not ways or ways.tests_unboxed is None else not ways.tests_unboxed

    def _given_to_layers(self, stack: NativeStack, call: DispatchCall) -> bool | None:
        """Layers that were given the boxed stack belong to a boxed call; in an unboxed one they make it themselves."""
        address = self._sites.argument(stack, call.header[-1], _BOXED_STACK)
        if stack.function(call.header[-1]):
            return False  # a layer that boxes, by its name
        return None if address is None else address >= stack.frames[call.header[0]].sp

    # --- code ------------------------------------------------------------------------------------

    def _is_given(self, stack: NativeStack, level: int) -> bool:
        """Some way to the call that frame ``level`` made leads from the function that gives the kernel of a key, with
        no other lookup between: the function of the frame may make ordinary calls, too."""
        pc = stack.frames[level].pc
        if not self._asks_for_key(self._sites.function(stack, level)):
            return False
        if pc not in self._given:
            code = self._sites.code(stack, level).instructions
            found = walk_back(code, pc, self._origin, self._never_returns)
            self._given[pc] = bool(found and "given" in found[0])
        return self._given[pc]

    def _origin(self, one: Instruction) -> str:
        """The way in which a kernel was found that is called behind this instruction; "" where this says nothing."""
        if not one.is_call:
            return "looked up" if self._shifts(one) or self._is_of_table(one) else ""
        target = next(self._called((one,)), 0)
        if not target:
            return "other call"
        return "given" if self._gives_kernel(target) else "looked up" if self._is_lookup(target) else ""

    def _ways_back(self, stack: NativeStack, level: int) -> WaysBack | None:
        pc = stack.frames[level].pc
        if pc not in self._ways:
            code = self._sites.code(stack, level)
            self._ways[pc] = ways_back(
                self._memory.architecture, code, pc, self._asks, self._never_returns, self._shifts
            )
        return self._ways[pc]

    def _never_returns(self, target: int) -> bool:
        if target not in self._endings:
            places = {follow_stub(self._memory, target), self._memory.try_u64(target) or 0}
            names = (name for place in places for name in self._symbolizer.names_at(place))
            self._endings[target] = any(name.startswith(NEVER_RETURNING) for name in names)
        return self._endings[target]

    def _asks(self, target: int) -> bool:
        if target not in self._asking:
            leads_to = (follow_stub(self._memory, target), self._memory.try_u64(target))
            self._asking[target] = self._callbacks != 0 and self._callbacks in leads_to
        return self._asking[target]

    def _dispatches(self, function: Function | None) -> bool:
        """The function has a lookup in it, or calls one."""
        if not function:
            return False
        if function.start not in self._dispatching:
            self._dispatching[function.start] = self._is_trusted(function) or self._looks_up(function)
        return self._dispatching[function.start]

    def _is_trusted(self, function: Function) -> bool:
        """A function of PyTorch's own, or one of whose code no call is known: its name alone says what it does."""
        in_torch = function.module.name.startswith("libtorch")
        return bool(function.names) and (in_torch or not self._sites.decoded(function).calls)

    def _looks_up(self, function: Function, by_callbacks: bool = True) -> bool:
        """``by_callbacks``: a function that asks for callbacks does, too. PyTorch has others that ask: of a node."""
        code = self._sites.decoded(function)
        if self._selects_key(code.instructions):
            return True
        return any(
            self._is_lookup(target) or self._gives_kernel(target) or (by_callbacks and self._asks(target))
            for target in self._called(code.calls)
        )

    def _called(self, calls: Iterable[Instruction]) -> Iterator[int]:
        """The targets of direct calls, and of those through the slots of imports."""
        return filter(None, (one.target or self._imported(one) for one in calls))

    def _gives_kernel(self, target: int) -> bool:
        """It is the function that gives the kernel of a key."""
        if target not in self._giving:
            names = self._symbolizer.names_at(follow_stub(self._memory, target))
            self._giving[target] = any(map(KERNEL_FOR_KEY.begins, names))
        return self._giving[target]

    def _imported(self, call: Instruction) -> int:
        """The function that a call through the slot of an import leads to (-fno-plt); 0 for any other call."""
        return (self._memory.try_u64(call.fixed_operand) or 0) if call.fixed_operand else 0

    def _is_lookup(self, target: int) -> bool:
        address = follow_stub(self._memory, target)
        if any(LOOKUP.begins(name) for name in self._symbolizer.names_at(address)):
            return True
        function = self._sites.function_at(address)
        if not function or function.start != address or function.names or function.size > _SMALL:
            return False
        return self._selects_key(self._sites.decoded(function).instructions)

    def _selects_key(self, instructions: tuple[Instruction, ...]) -> bool:
        """``DispatchKeySet::highestFunctionalityKey``: the keyset, shifted by the number of backends; of a keyset that
        is a constant only the access to the table is left."""
        return any(self._shifts(one) or self._is_of_table(one) for one in instructions)

    def _shifts(self, one: Instruction) -> bool:
        return one.kind == "shr" and one.immediate == self._num_backends

    def _is_of_table(self, one: Instruction) -> bool:
        """An access to an entry of a table that stands in an OperatorEntry, by an index."""
        memory = one.memory
        if not memory or not memory.index_register or one.kind not in ("mov", "lea") or one.stored:
            return False
        is_object = memory.base not in ("", PC_RELATIVE, self._memory.architecture.stack_pointer)
        return is_object and offset_in_entry(memory.displacement, self._table) is not None
