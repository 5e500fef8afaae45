"""The steps of a stack: each dispatch call as a fact, with its proof."""

from __future__ import annotations

from collections.abc import Callable

from gdbext.errors import GdbextError
from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.model.dispatch.dispatch_frame import DispatchFrame, DispatchKeySet, DispatchStage, Kernel
from gdbext.process.function_code import FunctionCode
from gdbext.process.memory import Memory
from gdbext.process.symbols import Function, Symbolizer
from gdbext.torch.registry.dispatch_table import DispatchTables
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.registry.kernel_name import is_wrapper, kernel_target, plain_name
from gdbext.torch.registry.operators import Operator
from gdbext.torch.stack.call_arguments import CallSites, follow_stub
from gdbext.torch.stack.dispatch_calls import DispatchCall, group
from gdbext.torch.stack.pending_redispatch import PendingRedispatch
from gdbext.torch.stack.recovery import CallRecovery, RecoveredCall
from gdbext.torch.stack.roles import PLAIN, FunctionRole, Role, classify, engine_calls, static_handle
from gdbext.torch.symbols import STATIC_HANDLE, STEP_CALLBACKS
from gdbext.torch.values.key_names import KeyNames
from gdbext.unwind.stack import Stack

MAX_LAYERS = 4
"""Frames between the dispatcher and a kernel, at most (KernelFunction, BoxedKernelWrapper, BoxedKernel)."""

KEPT_STACKS = 256
"""As many stacks keep their steps."""

NoteError = Callable[[GdbextError, str], None]
Steps = list[tuple[DispatchFrame, DispatchCall, RecoveredCall]]


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
        dispatcher = tables.dispatcher if tables is not None else None
        self._memory = memory
        self._symbolizer = symbolizer
        self._tables = tables
        self._note = note
        self._dispatcher = dispatcher
        self._unreached = PendingRedispatch(tables, memory, symbolizer) if tables is not None else None
        self._code = FunctionCode(memory, symbolizer)
        self._sites = CallSites(memory, self._code)
        self._recovery = CallRecovery(dispatcher, memory, symbolizer, self._sites) if dispatcher else None
        self._roles: dict[int, FunctionRole] = {}
        self._roles_at: dict[int, FunctionRole] = {}
        self._kernels: dict[tuple[int, KernelFunction, str], Kernel] = {}
        self._calls_callbacks: dict[int, bool] = {}
        self._calls_of: dict[tuple[tuple[int, ...], frozenset[int]], list[DispatchCall]] = {}
        """By a stack's path and the levels of its signal frames."""
        self._engine_calls: dict[tuple[int, ...], list[int]] = {}
        """By a stack's path."""
        self._keysets: dict[int, DispatchKeySet] = {}
        self._recovered: dict[int, tuple[Stack, Steps]] = {}
        """By the identity of a stack: its arguments are asked for after its steps."""

    @property
    def sites(self) -> CallSites:
        """The call sites of this process."""
        return self._sites

    @property
    def code(self) -> FunctionCode:
        """The decoded functions of this process."""
        return self._code

    def roles(self, stack: Stack) -> list[FunctionRole]:
        """The role of each frame, innermost first."""
        return [self._role(stack, level) for level in range(len(stack))]

    def engine_calls(self, stack: Stack) -> list[int]:
        """Levels of the autograd engine's calls of a node, innermost first."""
        levels = self._engine_calls.get(stack.path)
        if levels is None:
            levels = self._engine_calls[stack.path] = engine_calls(stack)
        return levels

    def steps(self, stack: Stack) -> tuple[DispatchFrame, ...]:
        """The steps of a stack, innermost first."""
        return tuple(step for step, _, _ in self.calls(stack))

    def calls(self, stack: Stack) -> Steps:
        """The steps of a stack, each with the frames that it was made of and what was recovered from them."""
        kept = self._recovered.get(id(stack))
        if kept is not None:
            return kept[1]
        if len(self._recovered) >= KEPT_STACKS:
            self._recovered.clear()
        steps = self._recover_steps(stack)
        self._recovered[id(stack)] = (stack, steps)
        return steps

    def _recover_steps(self, stack: Stack) -> Steps:
        calls = self._calls(stack)
        steps: Steps = []
        for found, recovered in zip(calls, self._recover(stack, calls)):
            behind = self._recovery.left_behind(stack, found, recovered) if self._recovery else None
            if behind is not None:
                steps.append((self._step(stack, *behind, innermost=not steps), *behind))
            if recovered.operator is not None or not found.needs_proof:
                steps.append((self._step(stack, found, recovered, innermost=not steps), found, recovered))
        return steps

    def _calls(self, stack: Stack) -> list[DispatchCall]:
        """The dispatch calls of a stack, innermost first."""
        signals = frozenset(level for level, frame in enumerate(stack.frames) if frame.is_signal)
        calls = self._calls_of.get((stack.path, signals))
        if calls is None:
            roles = self.roles(stack)
            calls = self._calls_of[stack.path, signals] = group(
                roles, signals, lambda level: self._sites.site(stack, level).through_pointer, self._elided(stack, roles)
            )
        return calls

    def _recover(self, stack: Stack, calls: list[DispatchCall]) -> list[RecoveredCall]:
        """What is known of each dispatch call; found from the outermost one inwards."""
        results: list[RecoveredCall] = []
        outer = None
        for found in reversed(calls):
            recovered = self._recovery.recover(stack, found, outer) if self._recovery else RecoveredCall()
            results.append(recovered)
            outer = recovered.operator or outer
        results.reverse()
        return results

    def _elided(self, stack: Stack, roles: list[FunctionRole]) -> dict[int, FunctionRole]:
        """Openers that left by a tail call: the caller's call names them, another function stands in their place."""
        found = {}
        for level in range(len(stack) - 1):
            if roles[level].role.opens or roles[level].role in (Role.LOOKUP, Role.ENTERING):
                continue
            target = self._sites.direct_target(stack, level + 1)
            if target is None:
                continue
            opener = self._role_at(target)
            if opener.role.opens and roles[level].mangled != opener.mangled and not self._on_the_way(stack, level):
                found[level] = opener
        return found

    def _on_the_way(self, stack: Stack, level: int) -> bool:
        """The frame stands in the PLT stub through which it is about to enter the opener."""
        pc = stack.frames[level].pc
        return stack.function(level) is None and follow_stub(self._memory, pc) != pc

    def _role_at(self, address: int) -> FunctionRole:
        """The role of the function that starts at ``address``."""
        role = self._roles_at.get(address)
        if role is None:
            function = self._symbolizer.function(address)
            starts = function is not None and function.start == address
            role = self._roles_at[address] = classify(function) if starts else PLAIN
        return role

    def _role(self, stack: Stack, level: int) -> FunctionRole:
        pc = stack.frames[level].lookup_pc
        role = self._roles.get(pc)
        if role is None:
            role = self._roles[pc] = classify(stack.function(level))
        return role

    def _step(self, stack: Stack, call: DispatchCall, recovered: RecoveredCall, innermost: bool) -> DispatchFrame:
        operator, overload = self._operator_name(call, recovered)
        keyset = None
        key = None
        if self._dispatcher is not None:
            keys = self._dispatcher.keys
            if recovered.keyset is not None:
                keyset = self._keyset(keys, recovered.keyset)
            if recovered.index is not None:
                key = keys.key_of_index(recovered.index)
        never_entered = None
        if innermost and self._unreached is not None:
            never_entered = self._unreached.next_key(stack, call, recovered, self._code)
        return DispatchFrame(
            level=call.level,
            event=DispatchEvent(call.event or self._hosted_event(stack, call, recovered)),
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
        )

    def _keyset(self, keys: KeyNames, bits: int) -> DispatchKeySet:
        keyset = self._keysets.get(bits)
        if keyset is None:
            keyset = self._keysets[bits] = DispatchKeySet(bits, keys.decode(bits))
        return keyset

    # --- names -----------------------------------------------------------------------------------

    def _operator_name(self, call: DispatchCall, recovered: RecoveredCall) -> tuple[str | None, str]:
        if recovered.operator is not None:
            try:
                return recovered.operator.name, recovered.operator.overload
            except GdbextError as error:
                recovered.evidence.append(f"the operator's name cannot be read: {error.what}")
                return None, ""
        return _name_of_struct(call.operator_struct), ""

    def _kernel(self, stack: Stack, call: DispatchCall, recovered: RecoveredCall, key: str | None) -> Kernel | None:
        if recovered.kernel is None or recovered.operator is None or self._dispatcher is None:
            return self._kernel_on_stack(stack, call)
        place = (recovered.operator.address, recovered.kernel, key or "")
        fact = self._kernels.get(place)
        if fact is None:
            fact = self._kernels[place] = self._table_kernel(recovered.operator, recovered, key or "")
        return fact

    def _table_kernel(self, operator: Operator, recovered: RecoveredCall, key: str) -> Kernel:
        assert self._dispatcher is not None
        assert recovered.kernel is not None
        kernel, kernels = recovered.kernel, self._dispatcher.kernels
        name = kernels.name(kernel, key, operator.qualified)
        function = name.function
        if name.file:
            function = f"{function} at {name.file}:{name.line}" if name.line else f"{function} at {name.file}"
        where = self._registration(operator, recovered.index) if recovered.index is not None else None
        return Kernel(
            function=function,
            valid=kernel.valid,
            boxed=kernel.valid,
            unboxed=kernel.unboxed != 0 or kernel.sym_unboxed != 0,
            fallthrough=kernels.fallthrough(kernel),
            registered_at=where[0] if where else None,
            path=where[1] if where else None,
        )

    def _registration(self, operator: Operator, index: int) -> tuple[str, str] | None:
        """(where the kernel at a table index was registered, the path to it), None where that cannot be proven."""
        assert self._tables is not None
        try:
            entry = self._tables.entry(operator, index)
        except GdbextError as error:
            self._note(error, f"registrations of {operator.qualified}")
            return None
        return (entry.debug, entry.path) if entry.consistent else None

    def _kernel_on_stack(self, stack: Stack, call: DispatchCall) -> Kernel | None:
        """The kernel as its frame names it, where no table entry could be found for it."""
        if call.kernel is None:
            return None
        function = stack.function(call.kernel)
        if function is None or self._role(stack, call.kernel).role.opens:
            return None
        return Kernel(_kernel_name(function))

    # --- event and stage -------------------------------------------------------------------------

    def _hosted_event(self, stack: Stack, call: DispatchCall, recovered: RecoveredCall) -> str:
        """The event where the dispatcher is inlined into other code, by what that code calls."""
        boxed = call.kernel is not None and self._enters_boxed(stack, call, recovered)
        if self._has_step_callbacks(stack, call.header[0]):
            return "callBoxed" if boxed else "call"
        return "redispatchBoxed" if boxed else "redispatch"

    def _enters_boxed(self, stack: Stack, call: DispatchCall, recovered: RecoveredCall) -> bool:
        if len(call.header) > 1:
            return False  # a boxing layer: the caller's side is unboxed
        assert call.kernel is not None
        role = self._role(stack, call.kernel).role
        if role in (Role.BOXED_KERNEL, Role.BOXED_BODY, Role.BOXED_FROM_UNBOXED):
            return True
        return recovered.kernel is not None and not recovered.kernel.unboxed

    def _has_step_callbacks(self, stack: Stack, level: int) -> bool:
        function = stack.function(level)
        if function is None:
            return False
        known = self._calls_callbacks.get(function.start)
        if known is None:
            known = self._calls_callbacks[function.start] = self._search_step_callbacks(function)
        return known

    def _search_step_callbacks(self, function: Function) -> bool:
        wanted = STEP_CALLBACKS.address(self._symbolizer)
        targets = {found.target for found in self._code.of(function).calls if found.target is not None}
        return wanted is not None and any(follow_stub(self._memory, target) == wanted for target in targets)

    def _stage(self, stack: Stack, call: DispatchCall, innermost: bool) -> DispatchStage:
        if call.kernel is not None:
            return DispatchStage.IN_KERNEL
        if call.detail is Role.ENTERING:
            return DispatchStage.ENTERING
        if call.detail is Role.LOOKUP:
            return DispatchStage.LOOKUP
        if self._role(stack, call.header[-1]).role.is_layer:
            return DispatchStage.INVOKING
        if call.helpers and stack.function(call.helpers[0]) is None:
            return self._unnamed_stage(stack, call.helpers[0])
        ready = self._handle_is_ready(call) or not innermost
        return DispatchStage.LOOKUP if ready else DispatchStage.ENTERING

    def _unnamed_stage(self, stack: Stack, level: int) -> DispatchStage:
        """In a stripped library: all that the lookup calls is exported, so nameless functions are layers, and what
        a layer calls through a pointer is the kernel."""
        for layer in range(level, max(level - MAX_LAYERS, 0), -1):
            if stack.function(layer) is not None:
                break
            if self._sites.is_through_pointer(stack, layer):
                return DispatchStage.IN_KERNEL
        return DispatchStage.INVOKING

    def _handle_is_ready(self, call: DispatchCall) -> bool:
        """The static handle of ``at::_ops::NAME`` is initialised: what follows it is the lookup."""
        if not call.operator_struct:
            return True
        address = self._symbolizer.address_of(static_handle(call.mangled), STATIC_HANDLE.library)
        return address is None or bool(self._memory.try_u64(address))


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
