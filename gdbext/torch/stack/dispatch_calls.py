"""Groups the frames of a stack into dispatch calls, by their roles alone.

A dispatch call is what one ``Dispatcher::call`` (or redispatch, callBoxed, redispatchBoxed) leaves on the stack: the
frame that opens it, layers, and the kernel. In a release build most of it is inlined; the frame whose code *hosts* the
dispatcher then opens the call. In a build without optimization every layer is a frame of its own, and all of them are
still one dispatch call. ``redispatch`` may also leave by a tail call to the kernel: then its caller's call
instruction, which still names it, is all that is left of it (an *elided* opener).

Some frames of a call say by their own names how the operator's arguments are passed: layers and the kernel's body. A
build without optimization has ``Dispatcher::call<…>`` and ``KernelFunction::call<…>`` as functions, most builds
``BoxedKernelWrapper<…>::call``, and the kernel's own function where its wrapper did not leave by a jump. Each takes the
operator's arguments last (ATen/core/dispatch/Dispatcher.h, boxing/KernelFunction_impl.h, boxing/impl/boxing.h).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.unwind import NativeStack
from gdbext.engine.vocabulary import Certainty
from gdbext.torch.assumed_symbols import BOXED_WRAPPER, DISPATCHER_CALL, DISPATCHER_REDISPATCH, KERNEL_FUNCTION
from gdbext.torch.memoized import memoized
from gdbext.torch.registry import Operator
from gdbext.torch.registry.dispatch_table import RegisteredKernels
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.stack.call_arguments import CallSites, follow_stub
from gdbext.torch.stack.kernel_match import BETWEEN, is_wrapping
from gdbext.torch.stack.roles import PLAIN, DispatcherLinks, FunctionRole, Role, classify, parameters, role_of_entry

CallKind = Callable[[int], Optional[bool]]
"""Level of a frame → whether it calls its inner frame through a pointer (None: unknown)."""
LayersOf = Callable[[int], list[int]]
"""Level of the frame that calls a kernel → the frames of that dispatch, the one that looks the kernel up first."""


@dataclass(eq=False)
class DispatchCall:
    """One dispatch call; frames are named by their levels, counted from the innermost frame."""

    header: list[int]
    """The opening frame, and those from there inwards up to the kernel."""
    event: str = ""
    """A DispatchEvent's value; "" if the call has no opening function that tells it."""
    is_inlined: bool = False
    """The opening frame is other code, into which the dispatcher was inlined."""
    needs_proof: bool = False
    """Only a call through a pointer indicates a dispatch: it counts if an operator is proven, else it is none."""
    elided: bool = False
    """The opening function left by a tail call; ``header`` starts with the frame that called it."""
    operator_struct: str = ""
    """As in ``FunctionRole``, of the opening function; so is ``mangled``."""
    mangled: str = ""
    kernel: int | None = None
    """The outermost frame of the kernel; None if none was entered."""
    detail: Role = Role.PLAIN
    """LOOKUP or ENTERING if the innermost header frame has that role."""
    helpers: list[int] = field(default_factory=list)
    """Frames below the header that are not the kernel: memory, locks, callbacks."""
    level: int = -1
    """The frame that contains the dispatcher's own code; by default the opening frame."""

    def __post_init__(self) -> None:
        if self.level < 0:
            self.level = self.header[0]

    def left_for(self, inner: DispatchCall, event: str) -> bool:
        """True if the opener left by a tail call for the function into which ``inner``, a call with this ``event``, is
        inlined. Both are one pass through the dispatcher then: ``OperatorHandle::callBoxed`` has a name and
        ``Dispatcher::callBoxed`` has none (-Os, stripped)."""
        return self.elided and inner.is_inlined and self.kernel == inner.header[0] and self.event == event


@dataclass(eq=False)
class RecoveredCall:
    """The facts that are proven of a dispatch call."""

    operator: Operator | None = None
    keyset: int | None = None
    index: int | None = None
    """The keyset's table index."""
    kernel: KernelFunction | None = None
    entry: int = 0
    """The one of the kernel's functions that runs; 0 if none does yet."""
    confidence: Certainty = Certainty.UNKNOWN
    """The confidence of the keyset."""
    evidence: list[str] = field(default_factory=list)

    def accept(
        self, keyset: int | None, index: int, kernel: KernelFunction, confidence: Certainty, entry: int = 0
    ) -> None:
        """Set the keyset, the table index and kernel that it leads to, and the kernel's function that runs
        (``entry``)."""
        self.keyset, self.index, self.kernel, self.entry = keyset, index, kernel, entry
        self.confidence = confidence
        words = f"boxed {kernel.boxed:#x}, unboxed {kernel.unboxed:#x}, functor {kernel.functor:#x}"
        self.evidence.append(f"table index {index}: {words}")


def group(
    roles: Sequence[FunctionRole],
    signals: frozenset[int],
    calls_pointer: CallKind,
    elided: Mapping[int, FunctionRole] | None = None,
    layers: LayersOf = lambda level: [level],
) -> list[DispatchCall]:
    """The dispatch calls of a stack, innermost first.

    ``roles`` has the role of each frame; ``signals`` are the levels of signal trampolines, ``elided`` the openers that
    left by a tail call, by the level of the frame that runs in their place.
    """
    grouping = _Grouping(calls_pointer, len(roles) - 1, layers)
    for level in range(len(roles) - 1, -1, -1):
        if level in signals:
            if grouping.calls and grouping.calls[-1].kernel is None:
                grouping.calls[-1].helpers.append(level)  # a signal handler: the call gets no further frames
        else:
            if elided and level in elided:
                grouping.open([level + 1], level, elided[level], elided=True)
            grouping.add(level, roles[level])
    grouping.calls.reverse()
    return grouping.calls


class _Grouping:
    """Takes the frames from the outermost one inwards; the last call is the one that may still grow."""

    def __init__(self, calls_pointer: CallKind, outermost: int, layers: LayersOf) -> None:
        self.calls: list[DispatchCall] = []
        self._outer_role = PLAIN
        self._calls_pointer = calls_pointer
        self._layers = layers
        self._outermost = outermost

    def add(self, level: int, function: FunctionRole) -> None:
        """Add the frame at ``level``, whose function has that role: to the last call, as a new call, or to none."""
        current = self.calls[-1] if self.calls else None
        may_grow = current and current.kernel is None and not current.helpers and current.header[-1] == level + 1
        growing = current if may_grow else None
        if function.role.opens:
            # a handle's method that forwards to the Dispatcher's method of the same name opens no second call
            forwards = function.role is not Role.OPERATOR and growing and function.event == growing.event
            if growing and forwards and not growing.elided and len(growing.header) < 4:
                growing.header.append(level)
                growing.level = level
            else:
                if growing:
                    growing.kernel = level  # its kernel was left by a tail call to this very frame
                self.open([level], level, function)
        elif growing:
            role = function.role
            is_kernel = role.is_kernel_entry or growing.elided
            if role.is_layer:
                growing.header.append(level)
            elif role not in (Role.LOOKUP, Role.ENTERING) and (is_kernel or self._calls_pointer(level + 1)):
                growing.kernel = level
            else:
                growing.detail = role if role in (Role.LOOKUP, Role.ENTERING) else growing.detail
                growing.helpers.append(level)
        elif function.role is not Role.PLAIN and level < self._outermost:  # the caller of the outermost is unknown
            self._add_inlined(level, function.role)
        self._outer_role = function

    def open(self, header: list[int], level: int, function: FunctionRole, elided: bool = False) -> None:
        """Begin a call that ``function`` opens; ``level`` is the frame with the dispatcher's code: the one that is in
        its place if it is ``elided``."""
        struct, mangled = function.operator_struct, function.mangled
        self.calls.append(
            DispatchCall(header, function.event, elided=elided, operator_struct=struct, mangled=mangled, level=level)
        )

    def _add_inlined(self, level: int, role: Role) -> None:
        """Add the dispatch call that was inlined into the caller of frame ``level``, if the frame's ``role`` shows that
        there is one: it is a layer, a lookup, or a kernel called through a pointer."""
        host = level + 1
        if role.is_layer:
            call = DispatchCall([host, level], is_inlined=True)
        elif role is Role.LOOKUP:
            call = DispatchCall([host], is_inlined=True, detail=role, helpers=[level])
        elif role.is_kernel_entry and not self._outer_role.calls_its_functor and self._calls_pointer(host):
            header = self._layers(host)
            if not header:
                return
            is_body = role in (Role.BOXED_BODY, Role.UNBOXED_BODY)
            call = DispatchCall(header, is_inlined=True, needs_proof=is_body, kernel=level)
        else:
            return
        current = self.calls[-1] if self.calls else None
        # if the dispatcher's own frame is seen again, it is no other code
        if not current or current.level != call.level or current.is_inlined or current.kernel == call.level:
            self.calls.append(call)


class TypedFrame(NamedTuple):
    """A frame whose function takes the operator's arguments last."""

    level: int
    before: tuple[str, ...]
    """What it takes before them, a word each; the last is "keyset" if the function takes one."""
    kinds: tuple[str, ...]
    """C++ types of the operator's arguments."""


def frames_with_types(stack: NativeStack, call: DispatchCall, count: int) -> Iterator[TypedFrame]:
    """The frames of a call whose function names have the types of its operator's ``count`` arguments."""
    layers = (BOXED_WRAPPER, DISPATCHER_CALL, DISPATCHER_REDISPATCH, KERNEL_FUNCTION)
    is_of_caller = call.is_inlined or call.elided  # then the outermost frame is the caller's
    for level in call.header[1 if is_of_caller else 0 :]:
        function = stack.function(level)
        if function and any(family.begins(function.name) for family in layers):
            frame = _typed_frame(level, function.name, count)
            if frame:
                yield frame
    if call.kernel is None:
        return
    # the kernel's own function: the first one further in that is not part of its wrapper
    for level in range(call.kernel, max(call.kernel - BETWEEN, -1), -1):
        function = stack.function(level)
        if not function:
            return
        if not is_wrapping(function.name):
            frame = _typed_frame(level, function.name, count)
            if frame and frame.before in ((), ("keyset",)):
                yield frame
            return


def _typed_frame(level: int, mangled: str, count: int) -> TypedFrame | None:
    """The frame at ``level`` by the ``mangled`` name of its function; None if the last ``count`` parameters cannot be
    the operator's arguments."""
    types = parameters(demangle(mangled).split(" [clone ", 1)[0])
    if len(types) < count or ".part." in mangled or ".isra." in mangled or ".constprop." in mangled:
        return None
    leading = ["keyset" if kind == "c10::DispatchKeySet" else kind for kind in types[: len(types) - count]]
    if "keyset" in leading[:-1]:
        return None
    before = (*(["this"] if mangled.startswith("_ZNK") else []), *leading)
    return TypedFrame(level, before, tuple(kind.replace("&&", "&") for kind in types[len(leading) :]))


class FrameRoles:
    """The roles of the frames of a process's stacks, also of functions without names.

    Frames are cached by their place: the address at which they are and the one to which they return.
    """

    def __init__(
        self,
        memory: Memory,
        symbolizer: Symbolizer,
        sites: CallSites,
        links: DispatcherLinks,
        registered: RegisteredKernels | None,
    ) -> None:
        """``registered`` recognizes functions without names; None without a dispatcher."""
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._links = links
        self._registered = registered
        self._by_pc: dict[int, FunctionRole] = {}
        self._by_place: dict[tuple[int, int], FunctionRole] = {}
        self._elided_by_place: dict[tuple[int, int], FunctionRole | None] = {}

    def all(self, stack: NativeStack) -> list[FunctionRole]:
        """The role of each frame, innermost first."""
        for place, level in stack.distinct_places.items():
            if place not in self._by_place:
                self._by_place[place] = self.of(stack, level)
        outermost = [self.of(stack, len(stack) - 1)] if stack.frames else []
        return [*map(self._by_place.__getitem__, stack.places), *outermost]

    def elided(self, stack: NativeStack, roles: list[FunctionRole]) -> dict[int, FunctionRole]:
        """Functions that opened a dispatch call and left by a tail call, by the level of the frame that is in their
        place: the caller's call instruction names them."""
        openers: dict[tuple[int, int], FunctionRole] = {}
        for place, level in stack.distinct_places.items():
            if place not in self._elided_by_place:
                self._elided_by_place[place] = self._elided_opener(stack, level, roles[level])
            opener = self._elided_by_place[place]
            if opener:
                openers[place] = opener
        return {level: openers[place] for level, place in enumerate(stack.places) if place in openers}

    def _elided_opener(self, stack: NativeStack, level: int, function: FunctionRole) -> FunctionRole | None:
        """The opener that the caller of frame ``level`` called and that left by a tail call for that frame, whose role
        is ``function``; None if the caller called no opener."""
        if function.role.opens or function.role in (Role.LOOKUP, Role.ENTERING):
            return None
        target = self._sites.direct_target(stack, level + 1)
        opener = self._role_of_start(target) if target else PLAIN
        if not opener.role.opens or function.mangled == opener.mangled:
            return None
        pc = stack.frames[level].pc
        # in the PLT stub through which it is about to enter the opener, nothing has left
        return None if not stack.function(level) and follow_stub(self._memory, pc) != pc else opener

    @memoized
    def _role_of_start(self, start: int) -> FunctionRole:
        """The role of the function with a name that begins at ``start``; PLAIN if there is none."""
        function = self._symbolizer.function(start)
        return classify(function) if function and function.start == start else PLAIN

    def of(self, stack: NativeStack, level: int) -> FunctionRole:
        """The role of frame ``level``."""
        pc = stack.frames[level].lookup_pc
        role = self._by_pc.get(pc)
        if not role:
            function = stack.function(level)
            role = self._by_pc[pc] = classify(function) if function else self._nameless_role(stack, level)
        if role.role is Role.PLAIN and level + 1 < len(stack.frames) and not stack.function(level + 1):
            return self._jumped_to_by_kernel(stack, level) or role
        return role

    def _jumped_to_by_kernel(self, stack: NativeStack, level: int) -> FunctionRole | None:
        """The role of frame ``level``'s function if a kernel of a library without symbols jumped to it: a backend's
        fallback may end with ``at::native::cpu_fallback(op, stack)``. None for any other function."""
        module, function = stack.frames[level + 1].module, stack.function(level)
        if not self._registered or not module or not function or not self._links.uses_dispatcher(module):
            return None
        if function.module is module or self._sites.ends_in_pointer(stack, level + 1) is not True:
            return None
        entry = self._registered.at(function.start, module)
        return role_of_entry(entry) if entry and entry.jumped_to else None

    def _nameless_role(self, stack: NativeStack, level: int) -> FunctionRole:
        """The role of frame ``level``, which has no symbol, by the dispatch tables that have its function."""
        function = self._sites.function(stack, level)
        if not function or not self._registered or not self._links.uses_dispatcher(function.module):
            return PLAIN
        return role_of_entry(self._registered.at(function.start, function.module))
