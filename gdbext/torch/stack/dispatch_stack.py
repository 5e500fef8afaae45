"""The steps of a stack: each dispatch call as a fact, with its proof."""

from __future__ import annotations

from collections.abc import Callable

from gdbext.engine.process.code_reader import FunctionCode
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Function, Symbolizer
from gdbext.engine.unwind import NativeStack
from gdbext.engine.unwind.frame_steps import FrameTables
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import STATIC_HANDLE
from gdbext.torch.registry import Operator
from gdbext.torch.registry.dispatch_table import ComputedEntry, DispatchTables
from gdbext.torch.registry.kernel import KernelFunction, is_wrapper, kernel_target, plain_name
from gdbext.torch.stack import DispatchEvent, DispatchFrame, DispatchKeySet, DispatchStage, Kernel
from gdbext.torch.stack.call_arguments import CallSites
from gdbext.torch.stack.dispatch_calls import DispatchCall, FrameRoles, group
from gdbext.torch.stack.hosted_events import HostedEvents
from gdbext.torch.stack.key_choice import PendingRedispatch, Steps
from gdbext.torch.stack.known_fallbacks import RecoveredCall
from gdbext.torch.stack.recovery import CallRecovery
from gdbext.torch.stack.roles import (
    DispatcherLinks,
    FunctionRole,
    Role,
    UnreadFrames,
    engine_calls,
    static_handle,
    stretches,
)
from gdbext.torch.values.key_names import PRIVATE_USE, KeyNames

MAX_LAYERS = 4
"""Frames between the dispatcher and a kernel, at most (KernelFunction, BoxedKernelWrapper, BoxedKernel)."""

NoteError = Callable[[GdbextError, str], None]


class DispatchStackReader:
    """Reads the steps of stacks of one process. Without a dispatcher (no layout) names are all there is."""

    def __init__(
        self,
        memory: Memory,
        symbolizer: Symbolizer,
        tables: DispatchTables | None,
        note: NoteError,
    ) -> None:
        """``note`` is called with what could not be read of the tables, and where."""
        dispatcher = tables.dispatcher if tables else None
        self._memory = memory
        self._symbolizer = symbolizer
        self._tables = tables
        self._note = note
        self._dispatcher = dispatcher
        self._unreached = PendingRedispatch(tables, memory, symbolizer) if tables else None
        self._code = FunctionCode(memory, symbolizer)
        self._sites = CallSites(memory, self._code, FrameTables(memory, symbolizer.modules))
        shape = (dispatcher.keys.num_backends, dispatcher.first_entry) if dispatcher else (None, range(0))
        self._events = HostedEvents(memory, symbolizer, self._sites, *shape)
        self._recovery = CallRecovery(dispatcher, memory, symbolizer, self._sites) if dispatcher else None
        self._links = DispatcherLinks()
        registered = self._recovery.registered if self._recovery else None
        self._roles = FrameRoles(memory, symbolizer, self._sites, self._links, registered)
        self._kernels: dict[tuple[int, KernelFunction, int, str], Kernel] = {}
        self._calls_of: dict[tuple[tuple[int, ...], frozenset[int]], list[DispatchCall]] = {}
        """Calls by a stack's path and the levels of its signal frames."""
        self._engine_calls: dict[tuple[int, ...], list[int]] = {}
        """Calls of the engine, by a stack's path."""
        self._unread_levels: dict[tuple[int, ...], list[int]] = {}
        """Levels of frames without names, by a stack's path."""
        self._nameless: dict[tuple[int, int], bool] = {}
        """Frames without names that may be unread, by the same."""
        self._unproven: dict[tuple[int, ...], set[int]] = {}
        """Levels of kernels without names whose operator was not found, by a stack's path."""
        self._keysets: dict[int, DispatchKeySet] = {}
        self._backends: dict[int, str] = {}
        self._recovered: dict[int, tuple[NativeStack, Steps]] = {}
        """Recovered calls by the identity of a stack: its arguments are asked for after its steps."""

    @property
    def sites(self) -> CallSites:
        """The call sites of this process."""
        return self._sites

    @property
    def code(self) -> FunctionCode:
        """The decoded functions of this process."""
        return self._code

    def roles(self, stack: NativeStack) -> list[FunctionRole]:
        """The role of each frame, innermost first."""
        return self._roles.all(stack)

    def engine_calls(self, stack: NativeStack) -> list[int]:
        """Levels of the autograd engine's calls of a node, innermost first."""
        levels = self._engine_calls.get(stack.path)
        if levels is None:
            levels = self._engine_calls[stack.path] = engine_calls(stack)
        return levels

    def steps(self, stack: NativeStack) -> tuple[DispatchFrame, ...]:
        """The steps of a stack, innermost first."""
        return tuple(step for step, _, _ in self.calls(stack))

    def calls(self, stack: NativeStack) -> Steps:
        """The steps of a stack, each with the frames that it was made of and what was recovered from them."""
        kept = self._recovered.get(id(stack))
        if kept:
            return kept[1]
        steps = self._recover_steps(stack)
        self._recovered[id(stack)] = (stack, steps)
        return steps

    def unread(self, stack: NativeStack) -> list[UnreadFrames]:
        """Stretches of frames without names in which passes may be missing, innermost first."""
        levels = self._unread_levels.get(stack.path)
        if levels is None:
            nameless = {place for place, level in stack.distinct_places.items() if self._is_nameless(stack, level)}
            places = enumerate(stack.places) if nameless else ()
            levels = [level for level, place in places if place in nameless and self._is_unread(stack, level)]
            self._unread_levels[stack.path] = levels
        levels = sorted({*levels, *self._unproven.get(stack.path, ())})
        return stretches(stack, levels, self._links) if levels else []

    def _is_unread(self, stack: NativeStack, level: int) -> bool:
        """Code without a name that is no known kernel, called through a pointer by code that looks kernels up."""
        if not self._sites.function(stack, level):
            return True
        if not stack.function(level + 1):
            return bool(self._events.layers(stack, level + 1))
        role = self._roles.of(stack, level + 1).role
        return role.opens or role.is_layer or self._events.looks_up(stack, level + 1)

    def _is_nameless(self, stack: NativeStack, level: int) -> bool:
        place = stack.places[level]
        if place not in self._nameless:
            self._nameless[place] = self._find_nameless(stack, level)
        return self._nameless[place]

    def _find_nameless(self, stack: NativeStack, level: int) -> bool:
        module = stack.frames[level].module
        if not module or stack.function(level) or not self._links.uses_dispatcher(module):
            return False
        if not self._sites.function(stack, level):
            return True
        is_entry = self._roles.of(stack, level).role.is_kernel_entry
        return not is_entry and self._sites.ends_in_pointer(stack, level + 1) is not False

    def _recover_steps(self, stack: NativeStack) -> Steps:
        calls = self._calls(stack)
        steps: Steps = []
        unproven = self._unproven.setdefault(stack.path, set())
        for found, recovered in zip(calls, self._recover(stack, calls)):
            is_same = steps and not recovered.kernel and recovered.operator is steps[-1][2].operator
            if is_same and found.left_for(steps[-1][1], steps[-1][0].event_name):
                continue
            behind = self._recovery.tail_called_kernel(stack, found, recovered) if self._recovery else None
            if behind:
                steps.append((self._step(stack, *behind, innermost=not steps), *behind))
            if recovered.operator or not found.needs_proof:
                steps.append((self._step(stack, found, recovered, innermost=not steps), found, recovered))
            elif found.kernel is not None and not stack.function(found.kernel):
                unproven.add(found.kernel)
        if steps and any(one.first < steps[0][0].level for one in self.unread(stack)):
            steps[0] = (steps[0][0]._replace(unread_inside=True), *steps[0][1:])
        return steps

    def _calls(self, stack: NativeStack) -> list[DispatchCall]:
        """The dispatch calls of a stack, innermost first."""
        signals = frozenset([frame.level for frame in stack.frames if frame.is_signal])
        calls = self._calls_of.get((stack.path, signals))
        if calls is None:
            roles = self._roles.all(stack)
            calls = self._calls_of[stack.path, signals] = group(
                roles,
                signals,
                lambda level: self._sites.ends_in_pointer(stack, level),
                self._roles.elided(stack, roles),
                lambda level: self._events.layers(stack, level),
            )
        return calls

    def _recover(self, stack: NativeStack, calls: list[DispatchCall]) -> list[RecoveredCall]:
        """The knowledge of each dispatch call, from the outermost one inwards."""
        results: list[RecoveredCall] = []
        outer: Operator | None = None
        enclosing: RecoveredCall | None = None
        for found in reversed(calls):
            is_call = self._is_call(stack, found)
            recovered = RecoveredCall()
            if self._recovery:
                for_key = self._events.is_for_key(stack, found)
                recovered = self._recovery.recover(stack, found, outer, enclosing, is_call, for_key)
            results.append(recovered)
            outer, enclosing = recovered.operator or outer, recovered
        results.reverse()
        return results

    def _step(self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, innermost: bool) -> DispatchFrame:
        operator, overload = self._operator_name(call, recovered)
        keyset = None
        key = None
        if self._dispatcher:
            keys = self._dispatcher.keys
            if recovered.keyset is not None:
                keyset = self._keyset(keys, recovered.keyset)
            if recovered.index is not None:
                key = keys.key_of_index(recovered.index)
        never_entered = None
        if innermost and self._unreached:
            never_entered = self._unreached.next_key(stack, call, recovered, self._code)
        return DispatchFrame(
            level=call.level,
            event=self._event(stack, call, recovered),
            op=operator,
            overload=overload,
            keyset=keyset,
            key=key,
            table_index=recovered.index,
            kernel=self._kernel(stack, call, recovered, key),
            stage=self._stage(stack, call, innermost),
            confidence=recovered.confidence,
            evidence=tuple(recovered.evidence),
            never_entered=never_entered,
            backend=self._backend(keyset) if keyset else "",
        )

    def _keyset(self, keys: KeyNames, bits: int) -> DispatchKeySet:
        keyset = self._keysets.get(bits)
        if not keyset:
            keyset = self._keysets[bits] = DispatchKeySet(bits, keys.decode(bits))
        return keyset

    def _backend(self, keyset: DispatchKeySet) -> str:
        """The process's own name of PrivateUse1, where that is among the keys."""
        name = self._backends.get(keyset.bits)
        if name is None:
            assert self._dispatcher  # a keyset has been read
            is_private = any(each.endswith(PRIVATE_USE) for each in keyset.keys)
            name = self._backends[keyset.bits] = self._dispatcher.keys.backend if is_private else ""
        return name

    # --- names -----------------------------------------------------------------------------------

    def _operator_name(self, call: DispatchCall, recovered: RecoveredCall) -> tuple[str | None, str]:
        if recovered.operator:
            try:
                return recovered.operator.name, recovered.operator.overload
            except GdbextError as error:
                recovered.evidence.append(f"the operator's name cannot be read: {error.what}")
                return None, ""
        return _name_of_struct(call.operator_struct), ""

    def _kernel(
        self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, key: str | None
    ) -> Kernel | None:
        if not recovered.kernel or not recovered.operator or not self._dispatcher:
            return self._kernel_on_stack(stack, call)
        place = (recovered.operator.address, recovered.kernel, recovered.entry, key or "")
        fact = self._kernels.get(place)
        if not fact:
            fact = self._kernels[place] = self._table_kernel(recovered.operator, recovered, key or "")
        return fact

    def _table_kernel(self, operator: Operator, recovered: RecoveredCall, key: str) -> Kernel:
        assert self._dispatcher
        assert recovered.kernel
        kernel, kernels = recovered.kernel, self._dispatcher.kernels
        name = kernels.name(kernel, key, operator.qualified, recovered.entry)
        proven = self._proven(operator, recovered.index) if recovered.index is not None else None
        return Kernel.of_table(kernel, name.text, kernels.fallthrough(kernel), proven)

    def _proven(self, operator: Operator, index: int) -> ComputedEntry | None:
        """The entry at a table index, None where it does not agree with the registrations."""
        assert self._tables
        try:
            entry = self._tables.entry(operator, index)
        except GdbextError as error:
            self._note(error, f"registrations of {operator.qualified}")
            return None
        return entry if entry.consistent else None

    def _kernel_on_stack(self, stack: NativeStack, call: DispatchCall) -> Kernel | None:
        """The kernel as its frame names it, where no table entry could be found for it."""
        if call.kernel is None:
            return None
        function = stack.function(call.kernel)
        if not function or self._roles.of(stack, call.kernel).role.opens:
            return None
        return Kernel(_kernel_name(function))

    # --- event and stage -------------------------------------------------------------------------

    def _event(self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall) -> DispatchEvent | None:
        if call.event:
            return DispatchEvent(call.event)
        if call.kernel is None:
            return self._before_kernel(stack, call)
        return self._events.of(stack, call, recovered.kernel, self._is_boxed_entry(stack, call, recovered))

    def _before_kernel(self, stack: NativeStack, call: DispatchCall) -> DispatchEvent | None:
        """No kernel was entered yet: the function asks for callbacks in all its dispatches, or in none."""
        return (
            DispatchEvent.CALL if self._events.asks_for_callbacks(stack, call.header[0]) else DispatchEvent.REDISPATCH
        )

    def _is_call(self, stack: NativeStack, call: DispatchCall) -> bool | None:
        """The call made its keyset of its arguments; False: it was given it; None: unknown."""
        if call.event:
            return not call.event.startswith("redispatch")
        return self._events.is_call(stack, call)

    def _is_boxed_entry(self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall) -> bool:
        """The kernel was entered by its boxed function."""
        assert call.kernel is not None
        role = self._roles.of(stack, call.kernel).role
        if role in (Role.BOXED_KERNEL, Role.BOXED_BODY, Role.BOXED_FROM_UNBOXED):
            return True
        return bool(recovered.kernel and not recovered.kernel.unboxed)

    def _stage(self, stack: NativeStack, call: DispatchCall, innermost: bool) -> DispatchStage:
        if call.kernel is not None:
            return DispatchStage.IN_KERNEL
        if call.detail is Role.ENTERING:
            return DispatchStage.ENTERING
        if call.detail is Role.LOOKUP:
            return DispatchStage.LOOKUP
        if self._roles.of(stack, call.header[-1]).role.is_layer:
            return DispatchStage.INVOKING
        if call.helpers and not stack.function(call.helpers[0]):
            return self._unnamed_stage(stack, call.helpers[0])
        ready = self._handle_is_ready(call) or not innermost
        return DispatchStage.LOOKUP if ready else DispatchStage.ENTERING

    def _unnamed_stage(self, stack: NativeStack, level: int) -> DispatchStage:
        """The stage in a stripped library: all that the lookup calls is exported, so nameless functions are layers, and
        what a layer calls through a pointer is the kernel."""
        for layer in range(level, max(level - MAX_LAYERS, 0), -1):
            if stack.function(layer):
                break
            if self._sites.is_through_pointer(stack, layer):
                return DispatchStage.IN_KERNEL
        return DispatchStage.INVOKING

    def _handle_is_ready(self, call: DispatchCall) -> bool:
        """The static handle of ``at::_ops::NAME`` is initialised: what follows it is the lookup."""
        if not call.operator_struct:
            return True
        address = self._symbolizer.address_of(static_handle(call.mangled), STATIC_HANDLE.library)
        return not address or bool(self._memory.try_u64(address))


def _kernel_name(function: Function) -> str:
    for name in function.demangled:
        if is_wrapper(name):
            return kernel_target(name) or name
    return plain_name(function.demangled[0].split(" [clone ", 1)[0])


def _name_of_struct(struct: str) -> str | None:
    """``aten::NAME`` of ``at::_ops::NAME`` where no overload can be part of it: no underscore inside the name."""
    if not struct or "_" in struct.strip("_"):
        return None
    return f"aten::{struct}"
