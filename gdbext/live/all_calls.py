"""Finds the fewest places that see every call of every operator, in torch's libraries and in those of others.

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
from functools import cache, cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.process.code_reader import HALVES, WHOLE, import_stubs, imported_slots, text_pieces
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.targets.live.supervision import begun_by_child
from gdbext.engine.targets.live.unstopped import RunningProcess
from gdbext.engine.unwind.caller_check import IsOpen
from gdbext.engine.unwind.frame_steps import CfaRule, cfa_rule_at
from gdbext.errors import GdbextError, MemoryFault
from gdbext.live.operator_functions import OperatorFunctions, cached_functions
from gdbext.torch.assumed_symbols import LOOKUP, OPERATOR_STRUCT, REPORT_ERROR, STEP_CALLBACKS, STEP_CALLBACKS_NAME
from gdbext.torch.registry.kernel import plain_name
from gdbext.torch.stack.inlined_events import KEYSET_BITS, walk_cfg_back
from gdbext.torch.stack.lookup_sites import FoundLookup, LookupSites, SiteFinder
from gdbext.torch.stack.roles import Role, classify
from gdbext.torch.structures import KernelFunctionStruct, OperatorEntry

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.code_reader import Part

_BOXED_POINTER = 8
"""Offset of the boxed function in a KernelFunction: what callBoxed calls through."""
_LONGEST_CALL = 16
"""Bytes of the longest instruction that calls."""
_SHIFT_DISTANCE = 256
"""Bytes before the access to the table in which the shift by num_backends is."""
_PASSAGE = struct.Struct("<QQ")
_LARGE_TEXT = 1 << 26
"""Bytes of code that one process searches in a quarter of a second: more is worth a child process."""


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

    def __init__(self, session: Session) -> None:
        self._session = session
        self.functions = OperatorFunctions(session)
        self._open_checks: dict[int, IsOpen] = {}
        self._in_modules: dict[int, Sequence[SharedLookup]] = {}
        self._boxed_events: dict[int, str] = {}

    def modules(self, only: Collection[str] = ()) -> list[Module]:
        """The libraries that call operators: those that name the step callbacks; of these paths, or all."""

        def names_callbacks(module: Module) -> bool:
            image = module.image
            names = image.sections.get(".dynstr") if image else None
            return STEP_CALLBACKS_NAME.encode() in (image.read(names.address, names.size) if image and names else b"")

        modules = self._session.modules.modules
        return [module for module in modules if (not only or module.path in only) and names_callbacks(module)]

    def lookups(self) -> list[int]:
        """Addresses of all copies of ``OperatorEntry::lookup``."""
        named = self.functions.addresses_named(LOOKUP, self.modules())
        return sorted({*named, *self.lookups_of_extensions()})

    def lookups_of_extensions(self) -> list[int]:
        """The copies in libraries other than torch's."""
        return sorted({address for module in self._extensions for address in self.copies(module)})

    @cached_property
    def _extensions(self) -> list[Module]:
        return [module for module in self.modules() if not module.name.startswith("libtorch")]

    def shared_lookups(self) -> list[SharedLookup]:
        """The functions of torch's libraries that ask for step callbacks, have the lookup inlined and belong to no
        single operator."""
        symbolizer, finder = self._session.symbolizer, self.functions.finder
        asked = STEP_CALLBACKS.address(symbolizer)
        shared = []

        def is_shared(function: Function) -> bool:
            return not any(map(OPERATOR_STRUCT.begins, function.names))

        for module in self.modules() if asked else ():
            if module in self._extensions:
                continue
            calls = partial(self._calls_of_imports, module, STEP_CALLBACKS.names, [asked])
            kept_as = f"shared callers {self._session.memory.architecture.name}"
            for function in cached_functions(symbolizer, module, kept_as, calls, is_shared):
                try:
                    sites = finder.find(function.start, function.size)
                except MemoryFault:
                    continue
                if sites and sites.how == "inlined" and sites.entry:
                    role = classify(function)
                    boxed = any(each.in_memory and each.displacement == _BOXED_POINTER for each in sites.invocations)
                    event = role.event if role.role is Role.DISPATCHER else "callBoxed" if boxed else "call"
                    shared.append(SharedLookup(function, sites, event))
        return shared

    @cached_property
    def own_lookups(self) -> list[SharedLookup]:
        """Every lookup in libraries and programs other than torch's: for calls and redispatches, inlined or not."""
        return [lookup for module in self._extensions for lookup in self.lookups_in(module)]

    def inlined_in_extensions(self) -> list[SharedLookup]:
        """Those of ``own_lookups`` that no copy of ``OperatorEntry::lookup`` sees."""
        return [lookup for lookup in self.own_lookups if lookup.sites.how == "inlined"]

    def not_seen(self) -> list[str]:
        """A sentence for each library that calls operators in ways that are not among ``own_lookups``."""
        counts = {module.name: len(self.not_seen_in(module)) for module in self._extensions}
        return [
            f"{'1 function' if count == 1 else f'{count} functions'} of {name} look operators up in a way that is not "
            "recognised"
            for name, count in counts.items()
            if count
        ]

    def not_seen_in(self, module: Module) -> set[int]:
        """The starts of those functions of a library that call operators, or report that there is no kernel, without
        a known lookup."""
        seen = {lookup.function.start for lookup in self.lookups_in(module)} | {*self.copies(module)}
        calls = self._calls_of_imports(module, (*STEP_CALLBACKS.names, *REPORT_ERROR.examples))
        return {function.start for function in self._functions_at(calls)} - seen

    def open_at(self, lookup: int) -> IsOpen | None:
        """Tells by a return address whether the function around a lookup is inside of its kernel then, and not behind
        its call. None for an operator's own function, which does nothing else."""
        function = self._session.dispatch_stacks.sites.function_at(lookup)
        if not function or classify(function).role is Role.OPERATOR:
            return None
        if function.start not in self._open_checks:
            self._open_checks[function.start] = _open_check(function, self.functions.finder)
        return self._open_checks[function.start]

    def endings(self, function: Function) -> tuple[list[tuple[int, CfaRule]], bool]:
        """(addresses where a function continues behind a kernel, or what enters one, each with the rule of its CFA
        there; whether it may leave by a jump into one)."""
        endings, jumps, finder = [], False, self.functions.finder
        architecture = self._session.memory.architecture
        for insn in finder.code(range(function.start, function.start + function.size)):
            if finder.enters_kernel(insn):
                frame = cfa_rule_at(architecture, finder.tables, insn.end, architecture.call_pushes)
                jumps |= not insn.is_call
                endings += [(insn.end, frame)] if insn.is_call and frame else []
        return endings, jumps

    def copies(self, module: Module) -> list[int]:
        """The copies of ``OperatorEntry::lookup`` in one library, with names or without."""
        copies = {*self.functions.addresses_named(LOOKUP, [module])}
        for function in self._functions_at(self._table_accesses(module)):
            if not function.names and self.functions.finder.is_lookup(function.start):
                copies.add(function.start)
        return sorted(copies)

    def lookups_in(self, module: Module) -> Sequence[SharedLookup]:
        """Every lookup in one library: for calls and redispatches, inlined or not."""
        if module.start not in self._in_modules:
            lookups = []
            copies = self.copies(module)
            calls = self._calls_of_imports(module, LOOKUP.examples, copies)
            for function in self._functions_at([*calls, *self._table_accesses(module)]):
                if function.start not in copies:
                    role = classify(function)
                    for found in self._lookups_of(function):
                        event = role.event if role.role is Role.DISPATCHER else found.event
                        lookups.append(SharedLookup(function, found.sites, event))
            self._in_modules[module.start] = lookups
        return self._in_modules[module.start]

    def _lookups_of(self, function: Function) -> list[FoundLookup]:
        try:
            return self.functions.finder.all_lookups(function)
        except MemoryFault:
            return []

    def event_at(self, returns_to: int) -> str:
        """The event of a lookup that returns there; "" where its function cannot be read."""
        function = self._session.dispatch_stacks.sites.function_at(returns_to - 1)
        lookups = self._lookups_of(function) if function else ()
        return next((found.event for found in reversed(lookups) if found.sites.lookup < returns_to), "")

    def _functions_at(self, addresses: Collection[int]) -> list[Function]:
        """The functions around these addresses, each once."""
        function_at = self._session.dispatch_stacks.sites.function_at
        functions: dict[int, Function] = {}
        for function in filter(None, map(function_at, addresses)):
            functions.setdefault(function.start, function)
        return list(functions.values())

    def _table_accesses(self, module: Module) -> list[int]:
        """Addresses where a function of one library computes which entry of an operator's table it wants, ascending."""
        return sorted({address for address, _ in self.passages(module, tuple)})

    def passages(self, module: Module, targets: Callable[[], Collection[int]]) -> Iterator[tuple[int, int]]:
        """(address, target) of the direct calls of ``targets`` in one library, and (address, 0) of its table accesses,
        some of them twice. A large library is searched by child processes from now on, which call ``targets``, while
        the caller does something else.
        """
        architecture, shift = self._session.memory.architecture, self.functions.finder.shift
        # That of the first entry of an operator's table, and of the first one behind those of the backends.
        table = OperatorEntry.dispatchTable_.field(self._session.layout).offset
        displacements = table, table + KEYSET_BITS * KernelFunctionStruct.shape(self._session.layout).size

        def packed_passages(part: Part) -> Iterator[bytes]:
            wanted = frozenset(targets())
            for start, code in text_pieces(module, 2 * _SHIFT_DISTANCE, part):
                calls = architecture.direct_calls(code, [target - start for target in wanted])
                passages = [(start + at, start + target) for at, target in calls]
                for displacement in displacements:
                    accesses = architecture.table_accesses(code, displacement, shift, _SHIFT_DISTANCE)
                    passages += [(start + at, 0) for at in accesses]
                yield b"".join(_PASSAGE.pack(*passage) for passage in sorted(passages))

        text = module.image.sections.get(".text") if module.image else None
        pieces = packed_passages(WHOLE)
        if text and text.size >= _LARGE_TEXT and self.may_use_children:
            halves = [begun_by_child(partial(packed_passages, half), _PASSAGE.size) for half in HALVES]
            pieces = chain.from_iterable(halves)
        return chain.from_iterable(map(_PASSAGE.iter_unpack, pieces))

    @property
    def may_use_children(self) -> bool:
        """A child of ours can work while we do: no debugger is in this process, and there is another CPU."""
        target = self._session.target
        has_own_process = isinstance(target, RunningProcess) and not target.inside_debugger
        return has_own_process and len(os.sched_getaffinity(0)) > 1

    def _calls_of_imports(self, module: Module, names: Collection[str], also: Collection[int] = ()) -> list[int]:
        """Addresses of the calls of these functions in one library, by its linkage table or (-fno-plt) through the
        slots of its imports, and of the direct calls of ``also``; ascending."""
        architecture = self._session.memory.architecture
        slots = imported_slots(module.image, names) if module.image else ()
        targets = {*also, *import_stubs(module, architecture, names)}
        calls: set[int] = set()
        for start, code in text_pieces(module, _LONGEST_CALL):
            if slots:
                through = architecture.slot_calls(code, {module.base + slot - start for slot in slots})
                calls.update(start + offset for offset, _ in through)
            direct = architecture.direct_calls(code, [target - start for target in targets])
            calls.update(start + offset for offset, _ in direct)
        return sorted(calls)

    def boxed_calls(self) -> list[int]:
        """Places where ``callBoxed`` calls a kernel's boxed function, with its four arguments in their registers."""
        return [
            invocation.address
            for shared in (*self.shared_lookups(), *self.own_lookups)
            if shared.event == "callBoxed"
            for invocation in shared.sites.invocations
            if invocation.in_memory and invocation.displacement == _BOXED_POINTER
        ]

    def boxed_event(self, returns_to: int) -> str:
        """The event of a boxed entry that returns there; "" inside an unboxed call, which has its own lookup."""
        if returns_to not in self._boxed_events:
            try:
                function = self._session.symbolizer.function(returns_to - 1)
            except GdbextError:
                function = None
            role, event = classify(function), ""
            if function and role.role.opens and role.role is not Role.OPERATOR:
                event = role.event
            elif function and role.role is not Role.OPERATOR and not role.role.is_layer:
                asked = STEP_CALLBACKS.address(self._session.symbolizer)
                event = "callBoxed" if asked in self.functions.calls_of(function) else "redispatchBoxed"
            self._boxed_events[returns_to] = event
        return self._boxed_events[returns_to]


def _open_check(function: Function, finder: SiteFinder) -> IsOpen:
    """Tells of a return address whether the function is inside of its last lookup's kernel there. True for another
    function's code: it was jumped to."""
    inside = range(function.start, function.start + function.size)
    code = cache(lambda: finder.code(inside))

    @cache
    def is_open(returns_to: int) -> bool:
        if returns_to not in inside:
            return True
        passed = walk_cfg_back(code(), returns_to, finder.dispatch_step, finder.never_returns)
        return not passed or "kernel" not in passed[0]

    return is_open
