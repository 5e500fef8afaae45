"""--all: the fewest places that see every call of every operator.

``Dispatcher::call`` and ``callBoxed`` ask ``at::getStepCallbacksUnlessEmpty`` once per call, at a point where the
keyset may be anywhere. Most of them call ``OperatorEntry::lookup`` before, with the OperatorEntry and the keyset as
arguments: one breakpoint on each copy of it sees them (and the redispatches that call it, which are left out: most
have it inlined, and half a truth is none). The few functions that ask for callbacks without calling lookup have it
inlined, and are stopped at like an operator's own functions.

Extensions and programs have copies of their own, with names or without: all lookups in them are found.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.process.code_reader import HALVES, WHOLE, import_stubs, imported_slots, text_pieces
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.targets.live.supervision import begun_by_child
from gdbext.engine.targets.live.unstopped import RunningProcess
from gdbext.engine.unwind.caller_check import IsOpen, StopPlace
from gdbext.engine.unwind.frame_steps import CfaRule, frame_at
from gdbext.errors import MemoryFault
from gdbext.live.operator_functions import OperatorFunctions, functions_kept
from gdbext.torch.assumed_symbols import LOOKUP, OPERATOR_STRUCT, REPORT_ERROR, STEP_CALLBACKS, STEP_CALLBACKS_NAME
from gdbext.torch.registry.kernel import plain_name
from gdbext.torch.stack.inlined_events import KEYSET_BITS, walk_cfg_back
from gdbext.torch.stack.lookup_sites import FoundLookup, LookupSites, SiteFinder
from gdbext.torch.stack.roles import Role, classify
from gdbext.torch.structures import KernelFunctionStruct, OperatorEntry

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.code_reader import Part
    from gdbext.live.host import RunControl
    from gdbext.torch.registry import Operator

_BOXED_POINTER = 8
"""Offset of the boxed function in a KernelFunction: what callBoxed calls through."""


_CALL = 16
"""Bytes of the longest instruction that calls."""
_SHIFT_DISTANCE = 256
"""Bytes before the access to the table in which the shift by num_backends stands."""


_PASSAGE = struct.Struct("<QQ")
_WORTH_A_CHILD = 1 << 26
"""Bytes of code, which one process goes through in a quarter of a second."""


class SharedLookup(NamedTuple):
    """A lookup in a function that belongs to no single operator."""

    function: Function
    sites: LookupSites
    event: str

    @property
    def where(self) -> str:
        """The name of the function; without one, the library and the offset in it."""
        if self.function.names:
            return plain_name(self.function.demangled[0])
        return f"{self.function.module.name}+{self.function.start - self.function.module.base:#x}"


class AllCalls:
    """Finds the places in one session."""

    def __init__(self, session: Session, functions: OperatorFunctions) -> None:
        self._session = session
        self._functions = functions
        self._table = OperatorEntry.dispatchTable_.field(session.layout).offset
        self._behind: dict[int, _Behind] = {}
        self._in_modules: dict[int, Sequence[SharedLookup]] = {}

    def modules(self, only: Collection[str] = ()) -> list[Module]:
        """The libraries that call operators: those that name the step callbacks; of these paths, or all."""
        modules = self._session.modules.modules
        return [module for module in modules if (not only or module.path in only) and _names_callbacks(module)]

    def lookups(self) -> list[int]:
        """Addresses of all copies of ``OperatorEntry::lookup``."""
        named = self._functions.addresses_named(LOOKUP, self.modules())
        return sorted({*named, *self.lookups_of_extensions()})

    def lookups_of_extensions(self) -> list[int]:
        """The copies in libraries other than torch's."""
        return sorted({address for module in self._extensions for address in self.copies(module)})

    @property
    def _extensions(self) -> list[Module]:
        return [module for module in self.modules() if not module.name.startswith("libtorch")]

    def shared_lookups(self) -> list[SharedLookup]:
        """The functions of torch's libraries that ask for step callbacks and have the lookup inlined."""
        extensions = self._extensions
        callers = (self._shared_callers(module) for module in self.modules() if module not in extensions)
        found = map(self._shared_lookup, chain.from_iterable(callers))
        return [shared for shared in found if shared]

    def _shared_callers(self, module: Module) -> list[Function]:
        """The functions of a library that ask for step callbacks and belong to no single operator."""
        wanted = STEP_CALLBACKS.address(self._session.symbolizer)
        if not wanted:
            return []
        calls = partial(self._calls_of_imports, module, STEP_CALLBACKS.names, [wanted])
        architecture, symbolizer = self._session.memory.architecture.name, self._session.symbolizer
        return functions_kept(symbolizer, module, f"shared callers {architecture}", calls, _is_shared)

    @cached_property
    def own_lookups(self) -> list[SharedLookup]:
        """Every lookup in libraries and programs other than torch's: for calls and redispatches, inlined or not."""
        return [lookup for module in self._extensions for lookup in self.lookups_in(module)]

    def inlined_in_extensions(self) -> list[SharedLookup]:
        """Those of ``own_lookups`` that no copy of ``OperatorEntry::lookup`` sees."""
        return [each for each in self.own_lookups if each.sites.how == "inlined"]

    def not_seen(self) -> list[str]:
        """A sentence for each library that calls operators in ways that are not among ``own_lookups``."""
        found = []
        for module in self._extensions:
            count = len(self.not_seen_in(module))
            if count:
                functions = "1 function" if count == 1 else f"{count} functions"
                found.append(f"{functions} of {module.name} look operators up in a way that is not recognised")
        return found

    def not_seen_in(self, module: Module) -> set[int]:
        """The starts of those functions of a library that call operators, or report that there is no kernel, and of
        which no lookup is found."""
        seen = {each.function.start for each in self.lookups_in(module)} | {*self.copies(module)}
        calls = self._calls_of_imports(module, (*STEP_CALLBACKS.names, *REPORT_ERROR.examples))
        callers = {function.start for function in self._functions_at(calls)}
        return callers - seen

    def open_at(self, lookup: int) -> IsOpen | None:
        """Tell where the function around a lookup is still inside of what it dispatches then: not behind the call of
        the kernel. None for an operator's own function, which does nothing else."""
        function = self._session.dispatch_stacks.sites.function_at(lookup)
        if not function or classify(function).role is Role.OPERATOR:
            return None
        if function.start not in self._behind:
            self._behind[function.start] = _Behind(function, self._functions.finder)
        return self._behind[function.start].is_open

    def endings(self, function: Function) -> tuple[list[tuple[int, CfaRule]], bool]:
        """The places where a function goes on behind a kernel, or what enters one, each with the rule of its CFA there;
        and whether it may leave by a jump into one."""
        found, jumps, finder = [], False, self._functions.finder
        for one in finder.code(range(function.start, function.start + function.size)):
            if finder.enters_kernel(one):
                size = self._session.memory.architecture.call_pushes
                frame = frame_at(self._session.memory.architecture, finder.tables, one.end, size)
                jumps |= not one.is_call
                found += [(one.end, frame)] if one.is_call and frame else []
        return found, jumps

    # --- the libraries of others -----------------------------------------------------------------

    def copies(self, module: Module) -> list[int]:
        """The copies of ``OperatorEntry::lookup`` in one library, with names or without."""
        found = {*self._functions.addresses_named(LOOKUP, [module])}
        for function in self._functions_at(self.table_accesses(module)):
            if not function.names and self._functions.finder.is_lookup(function.start):
                found.add(function.start)
        return sorted(found)

    def lookups_in(self, module: Module) -> Sequence[SharedLookup]:
        """Every lookup in one library: for calls and redispatches, inlined or not."""
        if module.start not in self._in_modules:
            self._in_modules[module.start] = tuple(self._find_lookups(module))
        return self._in_modules[module.start]

    def _find_lookups(self, module: Module) -> Iterator[SharedLookup]:
        copies = self.copies(module)
        calls = self._calls_of_imports(module, LOOKUP.examples, copies)
        for function in self._functions_at([*calls, *self.table_accesses(module)]):
            if function.start not in copies:
                role = classify(function)
                for each in self._each(function):
                    event = role.event if role.role is Role.DISPATCHER else each.event
                    yield SharedLookup(function, each.sites, event)

    def _each(self, function: Function) -> list[FoundLookup]:
        try:
            return self._functions.finder.all_lookups(function)
        except MemoryFault:
            return []

    def event_at(self, returns_to: int) -> str:
        """The event of a lookup that returns there; "" where its function cannot be read."""
        function = self._session.dispatch_stacks.sites.function_at(returns_to - 1)
        before = [one for one in self._each(function) if one.sites.lookup < returns_to] if function else ()
        return before[-1].event if before else ""

    def _functions_at(self, addresses: Collection[int]) -> list[Function]:
        found: dict[int, Function] = {}
        for address in addresses:
            function = self._session.dispatch_stacks.sites.function_at(address)
            if function:
                found.setdefault(function.start, function)
        return list(found.values())

    def table_accesses(self, module: Module) -> list[int]:
        """Addresses where a function of one library computes which entry of an operator's table it wants, ascending."""
        return sorted({address for address, _ in self.passages(module, tuple)})

    def passages(self, module: Module, targets: Callable[[], Collection[int]]) -> Iterator[tuple[int, int]]:
        """(address, target) of the direct calls of ``targets`` in one library, and (address, 0) of its table accesses,
        some of them twice. A large library is gone through by a child of ours from now on, which asks for the targets,
        while whoever has asked does something else, and then works on what it has found.
        """
        find = partial(self._packed_passages, module, targets, self._displacements)
        if self._is_work_for_many(module):
            halves = [begun_by_child(partial(find, half), _PASSAGE.size) for half in HALVES]
            return chain.from_iterable(map(_PASSAGE.iter_unpack, chain.from_iterable(halves)))
        return chain.from_iterable(map(_PASSAGE.iter_unpack, find(WHOLE)))

    def _packed_passages(
        self, module: Module, targets: Callable[[], Collection[int]], displacements: Sequence[int], part: Part
    ) -> Iterator[bytes]:
        architecture, shift = self._session.memory.architecture, self._functions.finder.shift
        wanted = frozenset(targets())
        for start, code in text_pieces(module, 2 * _SHIFT_DISTANCE, part):
            calls = architecture.direct_calls(code, [target - start for target in wanted])
            found = [(start + at, start + target) for at, target in calls]
            for displacement in displacements:
                accesses = architecture.table_accesses(code, displacement, shift, _SHIFT_DISTANCE)
                found += [(start + at, 0) for at in accesses]
            yield b"".join(_PASSAGE.pack(*each) for each in sorted(found))

    @cached_property
    def _displacements(self) -> Sequence[int]:
        """Those of the first entry of an operator's table, and of the first one behind those of the backends."""
        return self._table, self._table + KEYSET_BITS * KernelFunctionStruct.shape(self._session.layout).size

    def _is_work_for_many(self, module: Module) -> bool:
        text = module.image.sections.get(".text") if module.image else None
        is_large = bool(text and text.size >= _WORTH_A_CHILD)
        return is_large and self.may_use_children

    @property
    def may_use_children(self) -> bool:
        """A child of ours can work while we do: no debugger is in this process, and there is another processor."""
        target = self._session.target
        has_own_process = isinstance(target, RunningProcess) and not target.inside_debugger
        return has_own_process and len(os.sched_getaffinity(0)) > 1

    def direct_calls(self, module: Module, targets: Collection[int]) -> dict[int, int]:
        """Address → target of the direct calls of ``targets`` in one library, ascending."""
        architecture = self._session.memory.architecture
        return {
            start + offset: start + target
            for start, code in text_pieces(module, _CALL)
            for offset, target in architecture.direct_calls(code, [target - start for target in targets])
        }

    def _calls_of_imports(self, module: Module, names: Collection[str], also: Collection[int] = ()) -> list[int]:
        """Addresses of the calls of these functions in one library, by its linkage table or (-fno-plt) through the
        slots of its imports, and of the direct calls of ``also``; ascending."""
        architecture = self._session.memory.architecture
        slots = imported_slots(module.image, names) if module.image else ()
        through = (
            start + offset
            for start, code in (text_pieces(module, _CALL) if slots else ())
            for offset, _ in architecture.slot_calls(code, {module.base + slot - start for slot in slots})
        )
        stubs = import_stubs(module, architecture, names)
        return sorted({*through, *self.direct_calls(module, {*also, *stubs})})

    def boxed_calls(self) -> list[int]:
        """Places where ``callBoxed`` calls a kernel's boxed function, with its four arguments in their registers."""
        return [
            one.address
            for shared in (*self.shared_lookups(), *self.own_lookups)
            if shared.event == "callBoxed"
            for one in shared.sites.invocations
            if one.in_memory and one.displacement == _BOXED_POINTER
        ]

    def _shared_lookup(self, function: Function) -> SharedLookup | None:
        try:
            sites = self._functions.finder.find(function.start, function.size)
        except MemoryFault:
            return None
        if not sites or sites.how != "inlined" or not sites.entry:
            return None
        role = classify(function)
        boxed = any(one.in_memory and one.displacement == _BOXED_POINTER for one in sites.invocations)
        event = role.event if role.role is Role.DISPATCHER else "callBoxed" if boxed else "call"
        return SharedLookup(function, sites, event)


def _is_shared(function: Function) -> bool:
    return not any(OPERATOR_STRUCT.begins(name) for name in function.names)


def _names_callbacks(module: Module) -> bool:
    image = module.image
    names = image.sections.get(".dynstr") if image else None
    text = image.read(names.address, names.size) if image and names else b""
    return STEP_CALLBACKS_NAME.encode() in text


class _Behind:
    """Tells of return addresses in one function whether a call was made behind that of a kernel."""

    def __init__(self, function: Function, finder: SiteFinder) -> None:
        self._function = range(function.start, function.start + function.size)
        self._finder = finder
        self._code: Sequence[Instruction] | None = None
        self._known: dict[int, bool] = {}

    def is_open(self, returns_to: int) -> bool:
        """The function is still inside of what it looked up last. True for another function's code: it was jumped
        to."""
        if returns_to not in self._function:
            return True
        if returns_to not in self._known:
            if self._code is None:
                self._code = self._finder.code(self._function)
            met = walk_cfg_back(self._code, returns_to, self._finder.dispatch_step, self._finder.never_returns)
            self._known[returns_to] = not met or "kernel" not in met[0]
        return self._known[returns_to]


class _LookupCaller(NamedTuple):
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
        all_calls: AllCalls,
        redispatches: bool,
    ) -> None:
        """``redispatches``: True to count those, too."""
        self._all_calls = all_calls
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
        if not caller:
            caller = self._callers[returns_to] = self._classify(returns_to)
        if not caller.event or not caller.frame:
            return False
        operator = self._tracer.operator(control.register(self._this))
        if not operator:
            return False
        base = cfa if caller.frame.register == self._top else control.register(caller.frame.register)
        return self._tracer.lookup(operator, caller.event, tid, base + caller.frame.offset, caller.place, bits)

    def _classify(self, returns_to: int) -> _LookupCaller:
        function = self._session.dispatch_stacks.sites.function_at(returns_to - 1)
        nowhere = StopPlace(returns_to, 0, 0, self._architecture.call_pushes)
        if not function:
            return _LookupCaller("", None, nowhere)
        role = classify(function)
        event = role.event if role.role.opens else self._all_calls.event_at(returns_to)
        if event not in ("call", "callBoxed") and not self._redispatches:
            return _LookupCaller("", None, nowhere)
        frame = frame_at(self._architecture, self._functions.finder.tables, returns_to, self._architecture.call_pushes)
        size, end = frame.size if frame else 8, function.start + function.size
        is_open = self._all_calls.open_at(returns_to - 1)
        place = StopPlace(returns_to, function.start, end, size, is_open)
        return _LookupCaller(event, frame, place)
