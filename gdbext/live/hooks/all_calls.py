"""--all: the fewest places that see every call of every operator.

``Dispatcher::call`` and ``callBoxed`` ask ``at::getStepCallbacksUnlessEmpty`` once per call, at a point where the
keyset may be anywhere. Most of them call ``OperatorEntry::lookup`` before, with the OperatorEntry and the keyset as
arguments: one breakpoint on each copy of it sees them (and the redispatches that call it, which are left out: most
have it inlined, and half a truth is none). The few functions that ask for callbacks without calling lookup have it
inlined, and are stopped at like an operator's own functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from gdbext.errors import BadData, MemoryFault
from gdbext.live.hooks.lookup_sites import CfaRule, LookupSites, frame_at
from gdbext.live.hooks.operator_functions import OperatorFunctions
from gdbext.model.record import Record
from gdbext.process.import_stubs import import_stubs
from gdbext.process.modules import Module
from gdbext.process.symbols import Function
from gdbext.torch.stack.roles import Role, classify
from gdbext.torch.symbols import LOOKUP, OPERATOR_STRUCT, STEP_CALLBACKS, STEP_CALLBACKS_NAME
from gdbext.unwind.caller_check import Place

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.run_control import RunControl
    from gdbext.live.trace.tracer import Tracer

_BOXED_POINTER = 8
"""Offset of the boxed function in a KernelFunction: what callBoxed calls through."""


class SharedLookup(Record):
    """A function with an inlined lookup that belongs to no single operator."""

    function: Function
    sites: LookupSites
    event: str


class AllCalls:
    """Finds the places in one session."""

    def __init__(self, session: Session, functions: OperatorFunctions) -> None:
        self._session = session
        self._functions = functions

    def modules(self, only: Collection[str] = ()) -> list[Module]:
        """The libraries that call operators: those that name the step callbacks; of these paths, or all."""
        modules = self._session.modules.modules
        return [module for module in modules if (not only or module.path in only) and _names_callbacks(module)]

    def lookups(self) -> list[int]:
        """Every copy of ``OperatorEntry::lookup``."""
        return self._functions.addresses_named(LOOKUP, self.modules())

    def lookups_of_extensions(self) -> list[int]:
        """The copies in libraries other than torch's: what was built without optimisation calls them out of line."""
        others = [module for module in self._session.modules.modules if not module.name.startswith("libtorch")]
        return self._functions.addresses_named(LOOKUP, [module for module in others if _names_callbacks(module)])

    def shared_lookups(self) -> list[SharedLookup]:
        """The functions that ask for step callbacks and have the lookup inlined."""
        found: dict[int, SharedLookup] = {}
        for module in self.modules():
            for address in self._callers(module):
                function = self._session.symbolizer.function(address)
                if function is None or function.start in found:
                    continue
                if any(OPERATOR_STRUCT.begins(name) for name in function.names):
                    continue
                shared = self._shared_lookup(function)
                if shared is not None:
                    found[function.start] = shared
        return list(found.values())

    def boxed_calls(self) -> list[int]:
        """Where ``callBoxed`` calls a kernel's boxed function, with its four arguments in their registers."""
        return [
            one.address
            for shared in self.shared_lookups()
            if shared.event == "callBoxed"
            for one in shared.sites.invocations
            if one.in_memory and one.displacement == _BOXED_POINTER
        ]

    def _shared_lookup(self, function: Function) -> SharedLookup | None:
        try:
            sites = self._functions.finder.find(function.start, function.size)
        except MemoryFault:
            return None
        if sites is None or sites.how != "inlined" or not sites.entry:
            return None
        role = classify(function)
        boxed = any(one.in_memory and one.displacement == _BOXED_POINTER for one in sites.invocations)
        event = role.event if role.role is Role.DISPATCHER else "callBoxed" if boxed else "call"
        return SharedLookup(function, sites, event)

    def _callers(self, module: Module) -> Iterator[int]:
        """Addresses of the direct calls of ``getStepCallbacksUnlessEmpty`` in the module."""
        wanted = STEP_CALLBACKS.address(self._session.symbolizer)
        image = module.image
        text = image.sections.get(".text") if image is not None else None
        if wanted is None or image is None or text is None:
            return
        code = image.read(text.address, text.size)
        if code is None:
            return
        start = module.base + text.address
        architecture = self._session.memory.architecture
        for target in (wanted, *import_stubs(module, architecture, STEP_CALLBACKS.names)):
            for offset in architecture.direct_calls(code, target - start):
                yield start + offset


def _names_callbacks(module: Module) -> bool:
    image = module.image
    names = image.sections.get(".dynstr") if image is not None else None
    text = image.read(names.address, names.size) if image is not None and names is not None else None
    return text is not None and STEP_CALLBACKS_NAME.encode() in text


class _Caller(Record):
    event: str
    frame: CfaRule | None
    place: Place


class LookupStop:
    """What is done at a stop in ``OperatorEntry::lookup``: find out who called it, once per place."""

    def __init__(
        self, session: Session, control: RunControl, tracer: Tracer, functions: OperatorFunctions, redispatches: bool
    ) -> None:
        """``redispatches``: those count, too."""
        self._session = session
        self._control = control
        self._tracer = tracer
        self._functions = functions
        self._redispatches = redispatches
        self._this = session.memory.architecture.argument_registers[0]
        self._top = session.memory.architecture.stack_pointer
        self._callers: dict[int, _Caller] = {}

    def __call__(self, tid: int, cfa: int, bits: int) -> bool:
        """``cfa`` is lookup's own: its caller's stack pointer. Raises OSError, MemoryFault, BadData."""
        control = self._control
        returns_to = int.from_bytes(control.read(cfa - 8, 8), "little")
        caller = self._callers.get(returns_to)
        if caller is None:
            caller = self._callers[returns_to] = self._classify(returns_to)
        if not caller.event or caller.frame is None:
            return False
        operator = self._tracer.operator(control.register(self._this))
        if operator is None:
            return False
        base = cfa if caller.frame.register == self._top else control.register(caller.frame.register)
        return self._tracer.lookup(operator, caller.event, tid, base + caller.frame.offset, caller.place, bits)

    def _classify(self, returns_to: int) -> _Caller:
        function = self._session.symbolizer.function(returns_to - 1)
        nowhere = Place(returns_to, 0, 0, 8)
        if function is None:
            return _Caller("", None, nowhere)
        role = classify(function)
        event = role.event if role.role.opens else ("call" if self._asks_for_callbacks(function) else "redispatch")
        if event not in ("call", "callBoxed") and not self._redispatches:
            return _Caller("", None, nowhere)
        frame = frame_at(self._session.memory.architecture, self._functions.finder.tables, returns_to, 8)
        place = Place(returns_to, function.start, function.start + function.size, 8 if frame is None else frame.size)
        return _Caller(event, frame, place)

    def _asks_for_callbacks(self, function: Function) -> bool:
        wanted = STEP_CALLBACKS.address(self._session.symbolizer)
        try:
            return wanted in self._functions.calls_of(function)
        except BadData:
            return False
