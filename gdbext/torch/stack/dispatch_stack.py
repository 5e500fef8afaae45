"""The passes of a stack through the dispatcher: each with its operator, key, kernel and event, and the proof."""

from __future__ import annotations

from collections.abc import Callable

from gdbext.engine.process.code_reader import FunctionCode
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.unwind import NativeStack
from gdbext.engine.unwind.frame_steps import FrameTables
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import REPORT_ERROR, STATIC_HANDLE
from gdbext.torch.memoized import memoized
from gdbext.torch.registry import Operator
from gdbext.torch.registry.dispatch_table import DispatchTables
from gdbext.torch.registry.kernel import KernelFunction, is_wrapper, kernel_target, plain_name
from gdbext.torch.stack import DispatchEvent, DispatchFrame, DispatchKeySet, DispatchStage, Kernel
from gdbext.torch.stack.call_arguments import CallSites
from gdbext.torch.stack.dispatch_calls import DispatchCall, FrameRoles, RecoveredCall, group
from gdbext.torch.stack.inlined_events import InlinedDispatchEvents
from gdbext.torch.stack.key_choice import PendingRedispatch, Steps
from gdbext.torch.stack.recovery import CallRecovery
from gdbext.torch.stack.roles import DispatcherLinks, Role, UnreadFrames, engine_calls, static_handle, unread_stretches
from gdbext.torch.values.key_names import PRIVATE_USE


class DispatchStackReader:
    """Reads the passes of stacks of one process through the dispatcher (``steps``). Without a dispatcher (no layout)
    only the names of functions tell of them."""

    def __init__(
        self,
        memory: Memory,
        symbolizer: Symbolizer,
        tables: DispatchTables | None,
        note: Callable[[GdbextError, str], None],
    ) -> None:
        """``note`` reports an error in reading ``tables``, and the name of what was read."""
        dispatcher = tables.dispatcher if tables else None
        self._memory = memory
        self._symbolizer = symbolizer
        self._tables = tables
        self._note = note
        self._dispatcher = dispatcher
        self._pending = PendingRedispatch(tables, memory, symbolizer) if tables else None
        self.code = FunctionCode(memory, symbolizer)
        self.sites = CallSites(memory, self.code, FrameTables(memory, symbolizer.modules))
        shape = (dispatcher.keys.num_backends, dispatcher.first_entry) if dispatcher else (None, range(0))
        self._events = InlinedDispatchEvents(memory, symbolizer, self.sites, *shape)
        self._recovery = CallRecovery(dispatcher, memory, symbolizer, self.sites) if dispatcher else None
        self._links = DispatcherLinks()
        registered = self._recovery.registered if self._recovery else None
        self._roles = FrameRoles(memory, symbolizer, self.sites, self._links, registered)
        self.roles = self._roles.all
        # by a stack's path (return addresses), which many threads share
        self._calls_by_path: dict[tuple[tuple[int, ...], frozenset[int]], list[DispatchCall]] = {}
        """Calls by path and levels of signal frames."""
        self._engine_calls: dict[tuple[int, ...], list[int]] = {}  # path of a stack → engine_calls()
        self._unread_levels: dict[tuple[int, ...], list[int]] = {}  # levels of frames without names, by path
        self._unproven: dict[tuple[int, ...], set[int]] = {}
        """Levels of kernels without names whose operator was not found, by path."""
        self._nameless: dict[tuple[int, int], bool] = {}
        """Whether a frame without a name may be unread, by its address and the one that it returns to."""
        self._recovered: dict[int, tuple[NativeStack, Steps]] = {}
        """By the identity of a stack, which is kept alive with them: its arguments are asked for after its steps."""

    def engine_calls(self, stack: NativeStack) -> list[int]:
        """Levels of the autograd engine's calls of a node, innermost first."""
        if stack.path not in self._engine_calls:
            self._engine_calls[stack.path] = engine_calls(stack)
        return self._engine_calls[stack.path]

    def steps(self, stack: NativeStack) -> tuple[DispatchFrame, ...]:
        """The passes of a stack through the dispatcher, innermost first."""
        return tuple(step for step, _, _ in self.calls(stack))

    def calls(self, stack: NativeStack) -> Steps:
        """The passes of a stack, each with the frames that it was made of and what was recovered from them."""
        if id(stack) not in self._recovered:
            self._recovered[id(stack)] = (stack, self._recover_steps(stack))
        return self._recovered[id(stack)][1]

    def unread(self, stack: NativeStack) -> list[UnreadFrames]:
        """Stretches of frames without names in which passes may be missing, innermost first."""
        levels = self._unread_levels.get(stack.path)
        if levels is None:
            for place, level in stack.distinct_places.items():
                if place not in self._nameless:
                    self._nameless[place] = self._may_be_unread(stack, level)
            nameless = {place for place in stack.distinct_places if self._nameless[place]}
            places = enumerate(stack.places) if nameless else ()
            levels = [level for level, place in places if place in nameless and self._is_unread(stack, level)]
            self._unread_levels[stack.path] = levels
        levels = sorted({*levels, *self._unproven.get(stack.path, ())})
        return unread_stretches(stack, levels, self._links) if levels else []

    def _is_unread(self, stack: NativeStack, level: int) -> bool:
        """True if frame ``level``, which passes ``_may_be_unread``, was called by code that looks kernels up, so that
        it may be a kernel."""
        if not self.sites.function(stack, level):
            return True
        if not stack.function(level + 1):
            return bool(self._events.layers(stack, level + 1))
        role = self._roles.of(stack, level + 1).role
        return role.opens or role.is_layer or self._events.may_look_up(stack, level + 1)

    def _may_be_unread(self, stack: NativeStack, level: int) -> bool:
        """True if frame ``level`` may be an unknown kernel: its code has no name and is in a library that can have
        kernels, and it may have been called through a pointer, as a kernel is."""
        module = stack.frames[level].module
        if not module or stack.function(level) or not self._links.uses_dispatcher(module):
            return False
        if not self.sites.function(stack, level):
            return True
        is_entry = self._roles.of(stack, level).role.is_kernel_entry
        return not is_entry and self.sites.ends_in_pointer(stack, level + 1) is not False

    def _recover_steps(self, stack: NativeStack) -> Steps:
        """As ``calls``, without cache. Calls without proof that they are dispatches are left out; those of kernels
        without names are added to ``_unproven``."""
        calls = self._calls(stack)
        steps: Steps = []
        unproven = self._unproven.setdefault(stack.path, set())
        for call, recovered in zip(calls, self._recover(stack, calls)):
            is_same = steps and not recovered.kernel and recovered.operator is steps[-1][2].operator
            if is_same and call.left_for(steps[-1][1], steps[-1][0].event_name):
                continue
            tail_called = self._recovery.tail_called_kernel(stack, call, recovered) if self._recovery else None
            if tail_called:
                steps.append((self._step(stack, *tail_called, innermost=not steps), *tail_called))
            if recovered.operator or not call.needs_proof:
                steps.append((self._step(stack, call, recovered, innermost=not steps), call, recovered))
            elif call.kernel is not None and not stack.function(call.kernel):
                unproven.add(call.kernel)
        if steps and any(frames.first < steps[0][0].level for frames in self.unread(stack)):
            steps[0] = (steps[0][0]._replace(unread_inside=True), *steps[0][1:])
        return steps

    def _calls(self, stack: NativeStack) -> list[DispatchCall]:
        """The dispatch calls of a stack, innermost first."""
        signals = frozenset([frame.level for frame in stack.frames if frame.is_signal])
        calls = self._calls_by_path.get((stack.path, signals))
        if calls is None:
            roles = self._roles.all(stack)
            calls = self._calls_by_path[stack.path, signals] = group(
                roles,
                signals,
                lambda level: self.sites.ends_in_pointer(stack, level),
                self._roles.elided(stack, roles),
                lambda level: self._events.layers(stack, level),
            )
        return calls

    def _recover(self, stack: NativeStack, calls: list[DispatchCall]) -> list[RecoveredCall]:
        """The facts that are proven of each dispatch call, in the order of ``calls``. The outermost one is recovered
        first: it says which keys the calls inside it can have."""
        results: list[RecoveredCall] = []
        outer: Operator | None = None
        enclosing: RecoveredCall | None = None
        for call in reversed(calls):
            recovered = RecoveredCall()
            if self._recovery:
                is_redispatch = call.event.startswith("redispatch")
                makes_keyset = not is_redispatch if call.event else self._events.is_call(stack, call)
                for_key = self._events.is_for_key(stack, call)
                recovered = self._recovery.recover(stack, call, outer, enclosing, makes_keyset, for_key)
            results.append(recovered)
            outer, enclosing = recovered.operator or outer, recovered
        results.reverse()
        return results

    def _step(self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, innermost: bool) -> DispatchFrame:
        """The report of one dispatch call; ``innermost``: the stack has no dispatch inside it."""
        operator, overload = self._operator_name(call, recovered)
        key = never_entered = None
        if self._dispatcher and recovered.index is not None:
            key = self._dispatcher.keys.key_of_index(recovered.index)
        keyset, backend = self._reported_keyset(recovered.keyset) if recovered.keyset is not None else (None, "")
        if innermost and self._pending:
            never_entered = self._pending.next_key(stack, call, recovered, self.code)
        return DispatchFrame(
            level=call.level,
            event=self._event(stack, call, recovered),
            op=operator,
            overload=overload,
            keyset=keyset,
            key=key,
            table_index=recovered.index,
            kernel=self._kernel(stack, call, recovered),
            stage=self._stage(stack, call, innermost),
            confidence=recovered.confidence,
            evidence=tuple(recovered.evidence),
            never_entered=never_entered,
            backend=backend,
        )

    @memoized
    def _reported_keyset(self, bits: int) -> tuple[DispatchKeySet | None, str]:
        """(the keyset of these bits, the process's name of PrivateUse1 if the keyset has that backend, else "")."""
        if not self._dispatcher:
            return None, ""
        keyset = DispatchKeySet.of_bits(bits, self._dispatcher.keys)
        is_private = any(name.endswith(PRIVATE_USE) for name in keyset.keys)
        return keyset, self._dispatcher.keys.backend if is_private else ""

    def _operator_name(self, call: DispatchCall, recovered: RecoveredCall) -> tuple[str | None, str]:
        """(name, overload) of the call's operator; (None, "") if it is unknown."""
        if recovered.operator:
            try:
                return recovered.operator.name, recovered.operator.overload
            except GdbextError as error:
                recovered.evidence.append(f"the operator's name cannot be read: {error.what}")
                return None, ""
        struct = call.operator_struct
        # without an underscore inside the name of at::_ops::NAME, no overload can be part of it
        return (f"aten::{struct}" if struct and "_" not in struct.strip("_") else None), ""

    def _kernel(self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall) -> Kernel | None:
        """The kernel by its table entry, else as its frame names it; None if neither tells it."""
        if self._tables and recovered.kernel and recovered.operator:
            return self._table_kernel(recovered.operator, recovered.kernel, recovered.entry, recovered.index)
        function = stack.function(call.kernel) if call.kernel is not None else None
        if call.kernel is None and _reports_error(stack, call.header[-1] - 1):
            return Kernel("", valid=False)
        if call.kernel is None or not function or self._roles.of(stack, call.kernel).role.opens:
            return None
        wrapper = next(filter(is_wrapper, function.demangled), None)
        if wrapper is not None:
            return Kernel(kernel_target(wrapper) or wrapper)
        return Kernel(plain_name(function.demangled[0].split(" [clone ", 1)[0]))

    @memoized
    def _table_kernel(self, operator: Operator, kernel: KernelFunction, entry: int, index: int | None) -> Kernel | None:
        """A kernel of the operator's table; ``entry`` is its function that runs (0 for none), ``index`` its table index
        (None if several entries have it)."""
        if not self._tables:
            return None
        dispatcher = self._tables.dispatcher
        key = "" if index is None else dispatcher.keys.key_of_index(index)
        name = dispatcher.kernels.name(kernel, key, operator.qualified, entry)
        registered = None  # the entry as the registrations have it, if they agree with the table
        try:
            computed = self._tables.entry(operator, index) if index is not None else None
            registered = computed if computed and computed.consistent else None
        except GdbextError as error:
            self._note(error, f"registrations of {operator.qualified}")
        return Kernel.of_table(kernel, name.text, dispatcher.kernels.fallthrough(kernel), registered)

    def _event(self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall) -> DispatchEvent | None:
        """The method of c10::Dispatcher that was called, by the name of the opening function, else by the code into
        which it was inlined; None if neither proves one."""
        if call.event:
            return DispatchEvent(call.event)
        if call.kernel is None:  # the function asks for callbacks in all its dispatches, or in none
            asks = self._events.asks_for_callbacks(stack, call.header[0])
            return DispatchEvent.CALL if asks else DispatchEvent.REDISPATCH
        kernel, role = recovered.kernel, self._roles.of(stack, call.kernel).role
        boxed_entry = role in (Role.BOXED_KERNEL, Role.BOXED_BODY, Role.BOXED_FROM_UNBOXED)
        return self._events.event(stack, call, kernel, boxed_entry or bool(kernel and not kernel.unboxed))

    def _stage(self, stack: NativeStack, call: DispatchCall, innermost: bool) -> DispatchStage:
        """How far a call has got, by its frames and the code of functions without names; ``innermost``: the stack has
        no dispatch inside it."""
        if call.kernel is not None:
            return DispatchStage.IN_KERNEL
        if call.detail is Role.ENTERING:
            return DispatchStage.ENTERING
        if call.detail is Role.LOOKUP:
            return DispatchStage.LOOKUP
        if self._roles.of(stack, call.header[-1]).role.is_layer:
            return DispatchStage.INVOKING
        if call.helpers and not stack.function(call.helpers[0]):
            return self._stage_without_names(stack, call.helpers[0])
        if not innermost or not call.operator_struct:
            return DispatchStage.LOOKUP
        # after the static handle of at::_ops::NAME is initialized, the lookup follows
        address = self._symbolizer.address_of(static_handle(call.mangled), STATIC_HANDLE.library)
        is_ready = not address or bool(self._memory.try_u64(address))
        return DispatchStage.LOOKUP if is_ready else DispatchStage.ENTERING

    def _stage_without_names(self, stack: NativeStack, outermost: int) -> DispatchStage:
        """How far a call of a stripped library has got. All that the lookup calls is exported, so nameless functions,
        from frame ``outermost`` on, are layers (boxing, etc.); what a layer calls through a pointer is the kernel."""
        for level in range(outermost, max(outermost - 4, 0), -1):
            if stack.function(level):
                break
            if self.sites.is_through_pointer(stack, level):
                return DispatchStage.IN_KERNEL
        return DispatchStage.INVOKING


def _reports_error(stack: NativeStack, level: int) -> bool:
    """True if frame ``level`` is the function that raises the error of a missing kernel."""
    function = stack.function(level) if level >= 0 else None
    return function is not None and any(name in REPORT_ERROR.examples for name in function.names)
