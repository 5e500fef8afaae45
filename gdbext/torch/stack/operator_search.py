"""Finds the operator of a dispatch call: proven by an address that only this operator has.

In falling order: the static handle of ``at::_ops::NAME``; a handle that one of its frames passes on; the address of one
of the operator's table entries; the functor that a kernel was called with, which stands in one table only.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.errors import MemoryFault
from gdbext.torch.assumed_symbols import STATIC_HANDLE
from gdbext.torch.stack.roles import static_handle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.registry import Dispatcher, Operator
    from gdbext.torch.registry.dispatch_table import RegisteredKernels
    from gdbext.torch.stack.call_arguments import CallSites
    from gdbext.torch.stack.dispatch_calls import DispatchCall
    from gdbext.torch.stack.kernel_match import KernelMatcher

_HANDLE_ARGUMENTS = 3
"""Arguments among which a handle is looked for: the first, behind a hidden result pointer, behind that and ``this``."""


class OperatorSearch:
    """Finds the operators of dispatch calls. ``evidence`` arguments are lists that grow by what was found."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        memory: Memory,
        symbolizer: Symbolizer,
        sites: CallSites,
        running: KernelMatcher,
        registered: RegisteredKernels,
    ) -> None:
        self._registered = registered
        self._dispatcher = dispatcher
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._matcher = running
        self._static_operators: dict[str, Operator | None] = {}
        self._by_functor: dict[int, tuple[Operator, ...]] = {}

    def find(
        self, stack: NativeStack, call: DispatchCall, outer: Operator | None, evidence: list[str]
    ) -> Operator | None:
        """The operator of a dispatch call, None where none is proven. ``outer`` is that of the next call further out.

        Raises GdbextError where the dispatcher cannot be read.
        """
        operator = self._found(stack, call, outer, evidence)
        if not operator or operator.is_named:
            return operator
        evidence.append(f"it is not one: its name, {operator.qualified[:80]!r}, is none or that of another")
        return None

    def _found(
        self, stack: NativeStack, call: DispatchCall, outer: Operator | None, evidence: list[str]
    ) -> Operator | None:
        if call.operator_struct:
            return self._of_struct(call, evidence)
        return (
            self._passed_on(stack, call, evidence)
            or self._passed_in(stack, call, evidence)
            or self._by_table_entry(stack, call, evidence)
            or self._by_functor_passed(stack, call, evidence)
            or self._in_frames(stack, call, evidence)
            or (outer is not None and self._again(stack, call, outer, evidence))
            or self._by_kernel_alone(stack, call, evidence)
            or None
        )

    # --- at::_ops --------------------------------------------------------------------------------

    def _of_struct(self, call: DispatchCall, evidence: list[str]) -> Operator | None:
        """The operator of ``at::_ops::NAME::call``: its static handle, else the only operator of that name."""
        mangled = call.mangled.split(".", 1)[0]
        if mangled not in self._static_operators:
            self._static_operators[mangled] = self._static_operator(mangled, call.operator_struct, evidence)
        operator = self._static_operators[mangled]
        if not operator:
            operator = self._by_struct_name(call.operator_struct)
            if operator:
                evidence.append(f"the only registered operator that at::_ops::{call.operator_struct} can mean")
        return operator

    def _static_operator(self, mangled: str, name: str, evidence: list[str]) -> Operator | None:
        address = self._symbolizer.address_of(static_handle(mangled), STATIC_HANDLE.library)
        definition = self._memory.try_u64(address) if address else 0
        if not definition:
            return None  # the handle is not initialised, or its symbol is stripped
        operator = self._dispatcher.by_def(definition)
        if operator and operator.struct != name:
            what = repr(operator.qualified[:80])
            evidence.append(f"the static handle of at::_ops::{name} at {address:#x} leads to {what}")
            return None
        if operator:
            evidence.append(f"static handle of at::_ops::{name} at {address:#x}: OperatorDef {definition:#x}")
        return operator

    def _by_struct_name(self, name: str) -> Operator | None:
        """torchgen joins name and overload by an underscore (torchgen/model.py, unambiguous_name)."""
        meant = []
        for qualified, address in self._dispatcher.names.items():
            if qualified.startswith("aten::") and qualified[6:].replace(".", "_") == name:
                meant.append(address)
        return self._dispatcher.by_def(meant[0]) if len(meant) == 1 else None

    # --- handles ---------------------------------------------------------------------------------

    def _passed_on(self, stack: NativeStack, call: DispatchCall, evidence: list[str]) -> Operator | None:
        """The handle that one of the call's frames passes on."""
        for level in reversed(call.header):
            for number in range(_HANDLE_ARGUMENTS):
                operator = self._behind(self._sites.argument(stack, level, number))
                if operator and not self._has_another_functor(stack, call, operator):
                    place = f"{self._sites.place(number)} of the call in frame #{level}"
                    evidence.append(f"handle in {place}: OperatorDef {operator.address:#x} is registered")
                    return operator
        return None

    def _passed_in(self, stack: NativeStack, call: DispatchCall, evidence: list[str]) -> Operator | None:
        """The handle that the dispatcher's outermost function was called with."""
        level = call.header[0] + 1
        if not call.event or call.hosted or call.elided or level >= len(stack):
            return None
        for number in range(_HANDLE_ARGUMENTS):
            operator = self._behind(self._sites.argument(stack, level, number))
            if operator:
                place = self._sites.place(number)
                evidence.append(f"handle in {place} of the call in frame #{level}, into the dispatcher")
                return operator
        return None

    def _has_another_functor(self, stack: NativeStack, call: DispatchCall, operator: Operator) -> bool:
        """The running kernel was called with a functor that this operator has not: what looked like its handle was left
        on the stack, where the room for the result is now. Wrappers of one signature are shared by many operators."""
        functor = self._functor_passed(stack, call)
        return bool(functor) and functor not in operator.functors

    def _behind(self, value: int | None) -> Operator | None:
        """The operator that a word means: an OperatorDef*, or a pointer to an OperatorHandle."""
        if not value or value & 7:
            return None
        operator = self._dispatcher.by_def(value)
        if not operator:
            first = self._memory.try_u64(value)
            operator = self._dispatcher.by_def(first) if first else None
        return operator

    def _in_frames(self, stack: NativeStack, call: DispatchCall, evidence: list[str]) -> Operator | None:
        """The one operator that the words of the call's frames point to, if its table has the kernel that runs."""
        meant: dict[int, Operator] = {}
        for level in reversed(call.header):
            for _, value in self._matcher.words(stack, level):
                operator = self._behind(value)
                if not operator or self._has_another_functor(stack, call, operator):
                    continue
                if self._matcher.indices(stack, call.kernel, operator):
                    meant[operator.address] = operator
        if len(meant) != 1:
            return None
        operator = next(iter(meant.values()))
        evidence.append(f"OperatorDef {operator.address:#x} in the frame; its table has the kernel that runs")
        return operator

    # --- table entries and functors --------------------------------------------------------------

    @cached_property
    def _sorted_definitions(self) -> list[int]:
        return sorted(self._dispatcher.entries)

    def _with_entry(self, address: int) -> tuple[Operator, int] | None:
        """The operator whose table has an entry at ``address``, and its index."""
        at = bisect_right(self._sorted_definitions, address)
        operator = self._dispatcher.by_def(self._sorted_definitions[at - 1]) if at and not address & 7 else None
        index = operator.index_of_entry(address) if operator else None
        return None if not operator or index is None else (operator, index)

    def _by_table_entry(self, stack: NativeStack, call: DispatchCall, evidence: list[str]) -> Operator | None:
        """The operator by what ``lookup`` returned, still in one of the frames: the address of the entry whose kernel
        runs."""
        if call.kernel is None:
            return None
        functor = self._functor_passed(stack, call)
        meant: dict[int, Operator] = {}
        for level in reversed(call.header):
            for _, value in self._matcher.words(stack, level):
                entry = self._with_entry(value)
                if not entry:
                    continue
                kernel = entry[0].kernel(entry[1])
                if (
                    kernel.valid
                    and functor in (None, kernel.functor)
                    and self._matcher.matches_frame(stack, call.kernel, kernel)
                ):
                    meant[entry[0].address] = entry[0]
        if len(meant) != 1:
            return None
        operator = next(iter(meant.values()))
        evidence.append(f"address of a table entry of OperatorDef {operator.address:#x}, whose kernel runs")
        return operator

    def _by_functor_passed(self, stack: NativeStack, call: DispatchCall, evidence: list[str]) -> Operator | None:
        functor = self._functor_passed(stack, call)
        if not functor or functor & 7:
            return None
        if functor not in self._by_functor:
            self._by_functor[functor] = tuple(self._with_functor(functor))
        meant = [
            operator for operator in self._by_functor[functor] if self._matcher.indices(stack, call.kernel, operator)
        ]
        if len(meant) != 1:
            return None
        evidence.append(f"the kernel's functor {functor:#x} stands in the table of one operator only")
        return meant[0]

    def _again(self, stack: NativeStack, call: DispatchCall, outer: Operator, evidence: list[str]) -> Operator | None:
        """The outer call's operator once more, where its kernel hosts this call and nothing else is left of the handle.

        Proven where the keyset passed to the kernel leads, in the operator's table, to the function that runs. Boxed
        kernels serve many operators and prove nothing.
        """
        if not call.hosted or call.kernel is None or call.header[-1] != call.kernel + 1:
            return None
        for number in (1, 2):  # behind the functor, and behind a hidden result pointer if there is one
            value = self._sites.argument(stack, call.header[-1], number)
            if not value or value & ~self._dispatcher.keys.known_bits:
                continue
            kernel = outer.kernel_for(value)[1]
            unboxed = kernel._replace(boxed=0)
            if self._matcher.matches_frame(stack, call.kernel, unboxed):
                place = self._sites.place(number)
                evidence.append(f"{outer.qualified} again: {value:#x} in {place} leads to the kernel that runs")
                return outer
        return None

    def _by_kernel_alone(self, stack: NativeStack, call: DispatchCall, evidence: list[str]) -> Operator | None:
        """The only operator whose table leads to the code that runs: code without a name, or a function behind the
        pointer of a wrapper."""
        if call.kernel is None:
            return None
        function = self._sites.function(stack, call.kernel)
        body = self._matcher.body(stack, call.kernel)
        if not function or (function.names and not body):
            return None
        entry = self._registered.at(function.start, function.module)
        operators = entry.operators if entry else ()
        if body or not function.names:
            operators = tuple(one for one in operators if self._leads_to(one, stack, call.kernel))
        if len(operators) != 1:
            return None
        evidence.append(f"the code at {body or function.start:#x} is a kernel of one operator only")
        return self._dispatcher.by_def(operators[0])

    def _leads_to(self, definition: int, stack: NativeStack, level: int) -> bool:
        """The operator has a kernel that runs in that frame, by the function that its wrapper calls."""
        operator = self._dispatcher.by_def(definition)
        return bool(operator and self._matcher.indices(stack, level, operator))

    def _functor_passed(self, stack: NativeStack, call: DispatchCall) -> int | None:
        """The functor argument of the call to an unboxed kernel: the first one, the second behind a result's place.

        None where it cannot be read, or where the first argument is unknown and the second may be the keyset, which is
        no address of anything, or a boxed kernel's handle. (Code without optimisation leaves its own first argument
        where it is.)
        """
        if call.kernel is None or call.header[-1] != call.kernel + 1 or call.elided:
            return None
        level = call.header[-1]
        if not self._sites.site(stack, level).through_pointer:
            return None
        first = self._sites.argument(stack, level, 0)
        if first is None:
            second = self._sites.argument(stack, level, 1)
            is_address = second and self._symbolizer.modules.mapping_at(second)
            return second if is_address and not self._behind(second) else None
        in_stack = stack.frames[level].sp <= first < stack.frames[-1].cfa
        return self._sites.argument(stack, level, 1) if in_stack else first

    def _with_functor(self, functor: int) -> Iterator[Operator]:
        """Operators with a kernel of that functor: every table is looked through, which costs a tenth of a second."""
        wanted = struct.pack("<Q", functor)
        for definition in self._dispatcher.entries:
            try:
                raw = self._dispatcher.read_table(definition)
            except MemoryFault:
                continue
            at = raw.find(wanted)
            operator = self._dispatcher.by_def(definition) if at >= 0 else None
            if operator and any(kernel.functor == functor for kernel in operator.table):
                yield operator
