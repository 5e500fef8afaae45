"""Groups the frames of a stack into dispatch calls, by their roles alone.

A dispatch call is what one ``Dispatcher::call`` (or redispatch, callBoxed, redispatchBoxed) leaves on the stack: the
frame that opens it, layers, and the kernel. In a release build most of it is inlined; the frame whose code *hosts* the
dispatcher then opens the call. In a build without optimisation every layer is a frame of its own, and all of them are
still one dispatch call. ``redispatch`` may also leave by a tail call to the kernel: then its caller's call
instruction, which still names it, is all that is left of it (an *elided* opener).

Some frames of a call say by their own names how the operator's arguments are passed: layers and the kernel's body. A
build without optimisation has ``Dispatcher::call<…>`` and ``KernelFunction::call<…>`` as functions, most builds
``BoxedKernelWrapper<…>::call``, and the kernel's own function where its wrapper did not leave by a jump. Each takes the
operator's arguments last (ATen/core/dispatch/Dispatcher.h, boxing/KernelFunction_impl.h, boxing/impl/boxing.h).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats.demangle import demangle
from gdbext.torch.assumed_symbols import (
    BOXED_WRAPPER,
    DISPATCHER_CALL,
    DISPATCHER_REDISPATCH,
    KERNEL_FUNCTION,
)
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.stack.kernel_match import BETWEEN, is_machinery
from gdbext.torch.stack.roles import PLAIN, FunctionRole, Role, classify, parameters, role_of_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Optional

    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.registry.dispatch_table import RegisteredKernels
    from gdbext.torch.stack.call_arguments import CallSites
    from gdbext.torch.stack.roles import DispatcherLinks

    CallKind = Callable[[int], Optional[bool]]
    """Level of a frame → whether it calls its inner frame through a pointer (None: unknown)."""
    LayersOf = Callable[[int], list[int]]
    """Level of the frame that calls a kernel → the frames of that dispatch, the one that looks the kernel up first."""


class DispatchCall:
    """One dispatch call, levels counted from the innermost frame.

    ``header`` runs from the opening frame inwards; ``kernel`` is the outermost frame of the kernel, None where none
    was entered. ``detail`` is LOOKUP or ENTERING where the innermost header frame is one.
    """

    def __init__(
        self,
        header: list[int],
        event: str = "",
        hosted: bool = False,
        needs_proof: bool = False,
        elided: bool = False,
        operator_struct: str = "",
        mangled: str = "",
        kernel: int | None = None,
        detail: Role = Role.PLAIN,
        helpers: Sequence[int] = (),
        level: int | None = None,
    ) -> None:
        self.header = header
        self.event = event
        self.hosted = hosted
        """The opening frame is other code, into which the dispatcher was inlined."""
        self.needs_proof = needs_proof
        """Only the call through a pointer speaks for it: it counts when an operator is proven, else it is nothing."""
        self.elided = elided
        """The opening function left by a tail call; ``header`` starts with the frame that called it."""
        self.operator_struct = operator_struct
        self.mangled = mangled
        self.kernel = kernel
        self.detail = detail
        self.helpers = list(helpers)
        """Frames below the header that are not the kernel: memory, locks, callbacks."""
        self._level = level

    @property
    def level(self) -> int:
        """The frame that people look for: where the dispatcher's own code is."""
        return self._level if self._level is not None else self.header[0]

    def left_for(self, inner: DispatchCall, event: str) -> bool:
        """The opener left by a tail call for the function that hosts ``inner``, with that ``event``: one pass, where
        ``OperatorHandle::callBoxed`` has a name and ``Dispatcher::callBoxed`` has none (-Os, stripped)."""
        return self.elided and inner.hosted and self.kernel == inner.header[0] and self.event == event

    def open_at(self, level: int) -> bool:
        """The frame ``level`` may still belong to this call's header."""
        return self.kernel is None and not self.helpers and self.header[-1] == level + 1


def _alone(level: int) -> list[int]:
    return [level]


def group(
    roles: Sequence[FunctionRole],
    signals: frozenset[int],
    calls_pointer: CallKind,
    elided: Mapping[int, FunctionRole] | None = None,
    layers: LayersOf = _alone,
) -> list[DispatchCall]:
    """The dispatch calls of a stack, innermost first. ``signals`` are the levels of signal trampolines, ``elided`` the
    openers that were called where frame ``level`` now stands."""
    grouping = _Grouping(calls_pointer, len(roles) - 1, layers)
    for level in range(len(roles) - 1, -1, -1):
        if level in signals:
            grouping.interrupt(level)
        else:
            if elided and level in elided:
                grouping.add_elided(level, elided[level])
            grouping.add(level, roles[level])
    grouping.calls.reverse()
    return grouping.calls


class _Grouping:
    """Walks from the outermost frame inwards; the last call is the one that may still grow."""

    def __init__(self, calls_pointer: CallKind, outermost: int, layers: LayersOf) -> None:
        self.calls: list[DispatchCall] = []
        self._above = PLAIN
        self._calls_pointer = calls_pointer
        self._layers = layers
        self._outermost = outermost

    def interrupt(self, level: int) -> None:
        """A signal handler runs below: nothing further belongs to the current call."""
        if self.calls and self.calls[-1].kernel is None:
            self.calls[-1].helpers.append(level)

    def add(self, level: int, found: FunctionRole) -> None:
        current = self.calls[-1] if self.calls else None
        growing = current if current and current.kernel is None and current.open_at(level) else None
        if growing or found.role is not Role.PLAIN:
            if found.role.opens:
                self._open(level, found, growing)
            elif growing:
                self._extend(growing, level, found)
            elif level < self._outermost:  # of a stack that ends early it is not there
                self._maybe_hosted(level, found)
        self._above = found

    def add_elided(self, level: int, found: FunctionRole) -> None:
        """An opener was called by the frame above ``level`` and is gone."""
        self.calls.append(_opened([level + 1], level, found, elided=True))

    def _open(self, level: int, found: FunctionRole, growing: DispatchCall | None) -> None:
        if growing and not growing.elided and self._same_pass(growing, found):
            growing.header.append(level)
            growing._level = level
            return
        if growing:
            growing.kernel = level  # its kernel was left by a tail call to this very frame
        self.calls.append(_opened([level], level, found))

    @staticmethod
    def _same_pass(growing: DispatchCall, found: FunctionRole) -> bool:
        """A handle's method that forwards to the Dispatcher's method of the same name opens no second call."""
        return found.role is not Role.OPERATOR and found.event == growing.event and len(growing.header) < 4

    def _extend(self, growing: DispatchCall, level: int, found: FunctionRole) -> None:
        role = found.role
        if role.is_layer:
            growing.header.append(level)
        elif role in (Role.LOOKUP, Role.ENTERING):
            growing.detail = role
            growing.helpers.append(level)
        elif role.is_kernel_entry or growing.elided or self._calls_pointer(level + 1):
            growing.kernel = level
        else:
            growing.helpers.append(level)

    def _maybe_hosted(self, level: int, found: FunctionRole) -> None:
        role = found.role
        if role.is_layer:
            self._host(DispatchCall([level + 1, level], hosted=True))
        elif role is Role.LOOKUP:
            self._host(DispatchCall([level + 1], hosted=True, detail=role, helpers=[level]))
        elif role.is_kernel_entry and not self._above.calls_its_functor and self._calls_pointer(level + 1):
            is_body = role in (Role.BOXED_BODY, Role.UNBOXED_BODY)
            header = self._layers(level + 1)
            if header:
                self._host(DispatchCall(header, hosted=True, needs_proof=is_body, kernel=level))

    def _host(self, hosted: DispatchCall) -> None:
        current = self.calls[-1] if self.calls else None
        is_kernel = current and current.kernel == hosted.level
        if current and current.level == hosted.level and not current.hosted and not is_kernel:
            return  # the dispatcher's own frame, seen again: not other code
        self.calls.append(hosted)


def _opened(header: list[int], level: int, found: FunctionRole, elided: bool = False) -> DispatchCall:
    struct, mangled = found.operator_struct, found.mangled
    return DispatchCall(header, found.event, elided=elided, operator_struct=struct, mangled=mangled, level=level)


_LAYERS = (BOXED_WRAPPER, DISPATCHER_CALL, DISPATCHER_REDISPATCH, KERNEL_FUNCTION)
_KEYSET = "c10::DispatchKeySet"


class TypedFrame(NamedTuple):
    """``before``: words before the arguments, the last of which is "keyset" where the function takes one."""

    level: int
    before: tuple[str, ...]
    kinds: tuple[str, ...]


def frames_with_types(stack: NativeStack, call: DispatchCall, count: int) -> Iterator[TypedFrame]:
    """Those of a call of an operator with ``count`` arguments."""
    for level in call.header[1:] if call.hosted or call.elided else call.header:
        function = stack.function(level)
        if function and any(family.begins(function.name) for family in _LAYERS):
            typed = _typed(level, function.name, count)
            if typed:
                yield typed
    body = _body(stack, call)
    if body is not None:
        function = stack.function(body)
        typed = _typed(body, function.name, count) if function else None
        if typed and typed.before in ((), ("keyset",)):
            yield typed


def _typed(level: int, mangled: str, count: int) -> TypedFrame | None:
    """The frame by its function's name; None where its last parameters cannot be the operator's."""
    taken = parameters(demangle(mangled).split(" [clone ", 1)[0])
    if len(taken) < count or ".part." in mangled or ".isra." in mangled or ".constprop." in mangled:
        return None
    leading = taken[: len(taken) - count]
    if _KEYSET in leading[:-1]:
        return None
    member = ["this"] if mangled.startswith("_ZNK") else []
    before = (*member, *("keyset" if kind == _KEYSET else kind for kind in leading))
    return TypedFrame(level, before, tuple(kind.replace("&&", "&") for kind in taken[len(leading) :]))


def _body(stack: NativeStack, call: DispatchCall) -> int | None:
    """The frame of the kernel's own function: the first one further in that is not part of its wrapper."""
    if call.kernel is None:
        return None
    for level in range(call.kernel, max(call.kernel - BETWEEN, -1), -1):
        function = stack.function(level)
        if not function:
            return None
        if not is_machinery(function.name):
            return level
    return None


class FrameRoles:
    """The roles of the frames of a process's stacks, also of functions without names."""

    def __init__(
        self,
        memory: Memory,
        symbolizer: Symbolizer,
        sites: CallSites,
        links: DispatcherLinks,
        registered: RegisteredKernels | None,
    ) -> None:
        """``registered`` tells functions without names; None without a dispatcher."""
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._links = links
        self._registered = registered
        self._known: dict[int, FunctionRole] = {}
        self._known_at: dict[int, FunctionRole] = {}
        self._at: dict[tuple[int, int], FunctionRole] = {}
        """Roles by where the frame stands and where it returns to."""
        self._elided_at: dict[tuple[int, int], FunctionRole | None] = {}
        """Openers that left by a tail call, likewise."""

    def all(self, stack: NativeStack) -> list[FunctionRole]:
        """The role of each frame, innermost first."""
        for place, level in stack.distinct_places.items():
            if place not in self._at:
                self._at[place] = self.of(stack, level)
        outermost = [self.of(stack, len(stack) - 1)] if stack.frames else []
        return [*map(self._at.__getitem__, stack.places), *outermost]

    def elided(self, stack: NativeStack, roles: list[FunctionRole]) -> dict[int, FunctionRole]:
        """Openers that left by a tail call: the caller's call names them, another function stands in their place."""
        openers: dict[tuple[int, int], FunctionRole] = {}
        for place, level in stack.distinct_places.items():
            if place not in self._elided_at:
                self._elided_at[place] = self._elided_by(stack, level, roles[level])
            opener = self._elided_at[place]
            if opener:
                openers[place] = opener
        return {level: openers[place] for level, place in enumerate(stack.places) if place in openers}

    def _elided_by(self, stack: NativeStack, level: int, role: FunctionRole) -> FunctionRole | None:
        if role.role.opens or role.role in (Role.LOOKUP, Role.ENTERING):
            return None
        target = self._sites.direct_target(stack, level + 1)
        opener = self._role_at(target) if target else None
        if not opener or not opener.role.opens or role.mangled == opener.mangled:
            return None
        return None if self._on_the_way(stack, level) else opener

    def _on_the_way(self, stack: NativeStack, level: int) -> bool:
        """The frame stands in the PLT stub through which it is about to enter the opener."""
        pc = stack.frames[level].pc
        return not stack.function(level) and follow_stub(self._memory, pc) != pc

    def _role_at(self, address: int) -> FunctionRole:
        """The role of the function that starts at ``address``."""
        role = self._known_at.get(address)
        if not role:
            function = self._symbolizer.function(address)
            role = classify(function) if function and function.start == address else PLAIN
            self._known_at[address] = role
        return role

    def of(self, stack: NativeStack, level: int) -> FunctionRole:
        """The role of one frame."""
        frames = stack.frames
        pc = frames[level].lookup_pc
        role = self._known.get(pc)
        if not role:
            function = stack.function(level)
            role = classify(function) if function else self._role_without_name(stack, level)
            self._known[pc] = role
        if role.role is Role.PLAIN and level + 1 < len(frames) and not stack.function(level + 1):
            return self._jumped_to_by_kernel(stack, level) or role
        return role

    def _jumped_to_by_kernel(self, stack: NativeStack, level: int) -> FunctionRole | None:
        """The role of a function with a name that a kernel of a library without names has jumped to: a backend's
        fallback that ends with ``at::native::cpu_fallback(op, stack)``."""
        module, function = stack.frames[level + 1].module, stack.function(level)
        if not self._registered or not module or not function or not self._links.uses_dispatcher(module):
            return None
        if function.module is module or self._sites.ends_in_pointer(stack, level + 1) is not True:
            return None
        entry = self._registered.at(function.start, module)
        return None if not entry or not entry.jumped_to else role_of_entry(entry)

    def _role_without_name(self, stack: NativeStack, level: int) -> FunctionRole:
        """The role of code without symbols, by the dispatch tables."""
        function = self._sites.function(stack, level)
        if not function or not self._registered or not self._links.uses_dispatcher(function.module):
            return PLAIN
        return role_of_entry(self._registered.at(function.start, function.module))
