"""--all: the fewest places that see every call of every operator.

``Dispatcher::call`` and ``callBoxed`` ask ``at::getStepCallbacksUnlessEmpty`` once per call, at a point where the
keyset may be anywhere. Most of them call ``OperatorEntry::lookup`` before, with the OperatorEntry and the keyset as
arguments: one breakpoint on each copy of it sees them (and the redispatches that call it, which are left out: most
have it inlined, and half a truth is none). The few functions that ask for callbacks without calling lookup have it
inlined, and are stopped at like an operator's own functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Protocol

from gdbext.engine.process.code_reader import import_stubs
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.record import Record
from gdbext.engine.unwind.caller_check import StopPlace
from gdbext.errors import BadData, MemoryFault
from gdbext.hosts.resume.operator_functions import OperatorFunctions
from gdbext.torch.assumed_symbols import LOOKUP, OPERATOR_STRUCT, STEP_CALLBACKS, STEP_CALLBACKS_NAME
from gdbext.torch.stack.lookup_sites import CfaRule, LookupSites, frame_at
from gdbext.torch.stack.roles import Role, classify

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.hosts.resume.host import RunControl
    from gdbext.torch.registry.operators import Operator

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
        """Addresses of all copies of ``OperatorEntry::lookup``."""
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
        """Places where ``callBoxed`` calls a kernel's boxed function, with its four arguments in their registers."""
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


class _LookupCaller(Record):
    event: str
    frame: CfaRule | None
    place: StopPlace


class LookupListener(Protocol):
    """The listener that is told of lookups: the trace."""

    def operator(self, entry: int) -> Operator | None:
        """The operator with that OperatorEntry, None where it is not traced."""

    def lookup(self, operator: Operator, event: str, tid: int, cfa: int, place: StopPlace, bits: int) -> bool:
        """A dispatch was seen; whether the process is to be stopped."""


class LookupStop:
    """The work at a stop in ``OperatorEntry::lookup``: find out who called it, once per place."""

    def __init__(
        self,
        session: Session,
        control: RunControl,
        tracer: LookupListener,
        functions: OperatorFunctions,
        redispatches: bool,
    ) -> None:
        """``redispatches``: True to count those, too."""
        self._session = session
        self._control = control
        self._tracer = tracer
        self._functions = functions
        self._redispatches = redispatches
        self._architecture = session.memory.architecture
        self._this = self._architecture.argument_registers[0]
        self._top = self._architecture.stack_pointer
        self._callers: dict[int, _LookupCaller] = {}

    def __call__(self, tid: int, cfa: int, bits: int) -> bool:
        """``cfa`` is lookup's own: its caller's stack pointer. Raises OSError, MemoryFault, BadData."""
        control = self._control
        returns_to = self._architecture.return_address(control.read, cfa)
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

    def _classify(self, returns_to: int) -> _LookupCaller:
        function = self._session.symbolizer.function(returns_to - 1)
        nowhere = StopPlace(returns_to, 0, 0, self._architecture.call_pushes)
        if function is None:
            return _LookupCaller("", None, nowhere)
        role = classify(function)
        event = role.event if role.role.opens else ("call" if self._asks_for_callbacks(function) else "redispatch")
        if event not in ("call", "callBoxed") and not self._redispatches:
            return _LookupCaller("", None, nowhere)
        frame = frame_at(self._architecture, self._functions.finder.tables, returns_to, self._architecture.call_pushes)
        place = StopPlace(
            returns_to, function.start, function.start + function.size, 8 if frame is None else frame.size
        )
        return _LookupCaller(event, frame, place)

    def _asks_for_callbacks(self, function: Function) -> bool:
        wanted = STEP_CALLBACKS.address(self._session.symbolizer)
        try:
            return wanted in self._functions.calls_of(function)
        except BadData:
            return False
