"""Finds the functions that belong to an operator, and the fewest addresses that see every call of every operator.

``at::_ops::NAME::call`` and ``::redispatch`` are an operator's own (NAME is its name and overload joined by an
underscore, torchgen/model.py): a stop in them slows no other operator. Boxed calls go through
``Dispatcher::callBoxed``, which all operators share; the boxed entries of the operator's own kernels see them, too.

``Dispatcher::call`` and ``callBoxed`` call ``at::getStepCallbacksUnlessEmpty`` once per call, at a point where the
keyset may be anywhere. Most of them call ``OperatorEntry::lookup`` before, with the OperatorEntry and the keyset as
arguments: one breakpoint on each copy of it sees them (and the redispatches that call it, which are left out: most
have it inlined, and the rest would mislead). The few functions that ask for callbacks without a call of lookup have it
inlined, and get breakpoints like an operator's own functions.

Extensions and programs have copies of their own, with names or without: all lookups in them are found.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cache import cache_folder
from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.formats.symbol_cache import text_cache
from gdbext.engine.formats.symbol_table import Symbol
from gdbext.engine.process.code_reader import HALVES, WHOLE, import_stubs, imported_slots, text_pieces
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Function, Symbolizer
from gdbext.engine.targets.live.supervision import stream_from_child
from gdbext.engine.targets.live.unstopped import RunningProcess
from gdbext.engine.unwind.caller_check import IsOpen
from gdbext.engine.unwind.frame_steps import CfaRule, cfa_rule_at
from gdbext.engine.vocabulary import counted
from gdbext.errors import GdbextError, MemoryFault
from gdbext.torch import assumed_symbols
from gdbext.torch.registry.kernel import plain_name
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.stack.inlined_events import KEYSET_BITS, walk_cfg_back
from gdbext.torch.stack.lookup_sites import FoundLookup, LookupSites, SiteFinder
from gdbext.torch.stack.roles import Role, classify, operator_method, static_handles
from gdbext.torch.structures import KernelFunctionStruct, OperatorEntry
from gdbext.torch.torch_symbol import TorchSymbol

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.code_reader import Part
    from gdbext.torch.registry import Operator


class OperatorFunction(NamedTuple):
    """A function with the dispatcher inlined for one operator; ``event`` is "call" or "redispatch"."""

    operator: Operator
    event: str
    function: Function
    sites: LookupSites


class OperatorFunctions:
    """Finds the functions that belong to operators; one instance per session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        table = OperatorEntry.dispatchTable_.field(session.layout).offset
        self.finder = SiteFinder(
            session.memory,
            session.modules,
            session.symbolizer,
            session.layout.constant("num_backends"),
            range(table, table + KernelFunctionStruct.shape(session.layout).size),
        )

    @cached_property
    def structs(self) -> dict[str, list[tuple[str, int, int]]]:
        """NAME of ``at::_ops::NAME`` → (event, address, size) of its functions."""
        structs: dict[str, list[tuple[str, int, int]]] = {}
        family = assumed_symbols.OPERATOR_STRUCT
        for address, symbol in self._functions_with(family.names[0], [self._session.modules.named(family.library)]):
            struct, event = operator_method(symbol.name) if "." not in symbol.name else ("", "")
            if event:
                structs.setdefault(struct, []).append((event, address, symbol.size))
        return structs

    def _functions_with(self, text: str, modules: Iterable[Module | None]) -> Iterator[tuple[int, Symbol]]:
        """(address, symbol) of the functions in these modules whose mangled names contain ``text``."""
        for module in filter(None, modules):
            index = self._session.symbolizer.index(module)
            for symbol in index.matching(text.encode()) if index else ():
                if symbol.is_function:
                    yield module.base + symbol.vaddr, symbol

    def extents(self, operator: Operator) -> list[tuple[str, int, int]]:
        """(event, address, size) of the operator's own functions, "call" first."""
        return sorted(self.structs.get(operator.struct, ()))

    def functions(self, operator: Operator) -> list[OperatorFunction]:
        """The operator's own functions, "call" first; [] for one that was not generated into libtorch. Raises
        MemoryFault, BadData."""
        symbolizer, functions = self._session.symbolizer, []
        for event, address, _ in self.extents(operator):
            function = symbolizer.function(address)
            handles = static_handles(symbolizer, function) if function else ()
            # The static handle is this operator's, or not initialized yet.
            is_other = {self._session.memory.try_u64(handle) for handle in handles} - {0, None, operator.address}
            if function and not is_other and (sites := self.finder.find(function.start, function.size, handles)):
                functions.append(OperatorFunction(operator, event, function, sites))
        return functions

    def boxed_entries(self, operator: Operator) -> list[int]:
        """Addresses of the boxed functions of the operator's kernels that no other operator shares. Their arguments are
        functor, OperatorHandle&, keyset and stack. Raises MemoryFault."""

        def is_own(name: str) -> bool:
            from_unboxed = assumed_symbols.BOXED_FROM_UNBOXED.begins(name)
            return from_unboxed and assumed_symbols.RUNTIME_FUNCTOR_CLASS not in name

        addresses = dict.fromkeys(kernel.boxed for kernel in operator.table if kernel.valid)
        named = {address: self._session.symbolizer.names_at(address) for address in addresses}
        return [address for address, names in named.items() if names and all(map(is_own, names))]

    def python_entries(self) -> list[int]:
        """The boxed functions that all Python kernels share."""
        family = assumed_symbols.BOXED_FUNCTOR
        modules = [self._session.modules.named(family.library)]
        functions = chain.from_iterable(self._functions_with(name, modules) for name in family.names)
        return sorted({address for address, symbol in functions if assumed_symbols.PYTHON_KERNEL_CLASS in symbol.name})

    def addresses_named(self, family: TorchSymbol, modules: Sequence[Module]) -> list[int]:
        """Addresses of the functions of a symbol family in these modules, without cold parts."""
        functions = self._functions_with(family.names[0], modules)
        names = ((address, symbol.name) for address, symbol in functions)
        return sorted({address for address, name in names if family.begins(name) and ".cold" not in name})

    def structured(self, operator: Operator) -> list[tuple[str, Function]]:
        """("meta" or "impl", function) of the operator's structured kernels, found by following the calls of its other
        kernels: ``at::meta::structured_NAME::meta`` and ``at::native::structured_FUNCTION::impl``."""
        structured: dict[int, tuple[str, Function]] = {}
        to_follow = [kernel.unboxed for kernel in operator.table if kernel.unboxed]
        seen: set[int] = set()
        while to_follow and len(seen) < 200:  # mm has 40 wrappers
            start = to_follow.pop()
            function = self._session.symbolizer.function(start) if start not in seen else None
            seen.add(start)
            if not function:
                continue
            # TORCH_META_FUNC and TORCH_IMPL_FUNC define these.
            names = [name for name in function.names if assumed_symbols.STRUCTURED in name]
            if any(assumed_symbols.STRUCTURED_META.begins(name) and "4metaE" in name for name in names):
                structured[function.start] = ("meta", function)
            elif any(assumed_symbols.STRUCTURED_IMPL.begins(name) and "4implE" in name for name in names):
                structured[function.start] = ("impl", function)
            # Generated code between the table and a structured kernel: RegisterCPU.cpp and its like.
            elif any(part in name for name in function.names for part in assumed_symbols.GENERATED_WRAPPERS):
                to_follow += self.calls_of(function)
        return [structured[start] for start in sorted(structured)]

    def calls_of(self, function: Function) -> set[int]:
        """Targets of the function's direct calls and jumps out of it, through PLT stubs."""
        memory = self._session.memory
        inside = range(function.start, function.start + function.size)
        targets = (insn.target for insn in self.code(function) if insn.kind in ("call", "jmp"))
        return {follow_stub(memory, target) for target in targets if target and target not in inside} - {0}

    def returns(self, function: Function) -> list[int]:
        """Addresses of the function's ``ret`` instructions."""
        return [insn.address for insn in self.code(function) if insn.kind == "ret"]

    def code(self, function: Function) -> Sequence[Instruction]:
        """The instructions of a function, cached until another function is read; () if it cannot be read."""
        return self.finder.code(range(function.start, function.start + function.size))


def cached_functions(
    symbolizer: Symbolizer,
    module: Module,
    what: str,
    places: Callable[[], Iterable[int]],
    wanted: Callable[[Function], bool],
) -> list[Function]:
    """The ``wanted`` functions around the addresses ``places()`` in a library, in that order.

    The search for these addresses takes a second or two in a library as large as torch's, and its result depends on the
    file only: so the starts of the functions are kept in the user's cache, by file and ``what``.
    """

    def functions_at(addresses: Iterable[int]) -> list[Function]:
        functions = {function.start: function for function in map(symbolizer.function, addresses) if function}
        return list(functions.values())

    key = module.kept_as
    name, cache = f"{what} {key}".encode(), text_cache(cache_folder(), "callers")
    text = cache.text(name) if key else None
    if text is not None:
        return functions_at(module.base + int(word, 16) for word in text.split())
    functions = list(filter(wanted, functions_at(places())))
    if key:
        cache.keep(name, " ".join(f"{function.start - module.base:x}" for function in functions).encode())
    return functions


_BOXED_POINTER = 8
"""Offset in a KernelFunction of the boxed function that callBoxed calls."""
_SHIFT_DISTANCE = 256
"""Bytes before the access to the table that contain the shift by num_backends."""
_PASSAGE = struct.Struct("<QQ")


class SharedLookup(NamedTuple):
    """A lookup in a function that belongs to no single operator; ``event`` as in OperatorFunction, or "callBoxed"."""

    function: Function
    sites: LookupSites
    event: str

    @property
    def where(self) -> str:
        """The name of the function; without one, the library and the offset in it."""
        if self.function.names:
            return plain_name(self.function.demangled[0])
        return f"{self.function.module.name}+{self.function.start - self.function.module.base:#x}"


def _boxed_invocations(sites: LookupSites) -> list[int]:
    """Addresses of the calls through a KernelFunction's boxed function pointer, after one of these lookups."""
    return [call.address for call in sites.invocations if call.in_memory and call.displacement == _BOXED_POINTER]


class AllCalls:
    """Finds the addresses that see every call of every operator, in one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.functions = OperatorFunctions(session)
        self._open_checks: dict[int, IsOpen] = {}
        self._in_modules: dict[int, Sequence[SharedLookup]] = {}
        self._boxed_events: dict[int, str] = {}

    def modules(self, only: Collection[str] = ()) -> list[Module]:
        """The libraries that call operators, since they name the step callbacks; of the paths ``only``, () for all."""
        name = assumed_symbols.STEP_CALLBACKS_NAME.encode()

        def calls_operators(module: Module) -> bool:
            image = module.image if not only or module.path in only else None
            names = image.sections.get(".dynstr") if image else None
            return bool(image and names and name in image.read(names.address, names.size))

        return list(filter(calls_operators, self._session.modules.modules))

    def lookups(self) -> list[int]:
        """Addresses of all copies of ``OperatorEntry::lookup``."""
        named = self.functions.addresses_named(assumed_symbols.LOOKUP, self.modules())
        return sorted({*named, *self.lookups_of_extensions()})

    def lookups_of_extensions(self) -> list[int]:
        """Addresses of the copies of ``OperatorEntry::lookup`` in libraries other than torch's."""
        return sorted({address for module in self._extensions for address in self.copies(module)})

    @cached_property
    def _extensions(self) -> list[Module]:
        return [module for module in self.modules() if not module.name.startswith("libtorch")]

    def shared_lookups(self) -> list[SharedLookup]:
        """The functions of torch's libraries that ask for step callbacks, have the lookup inlined and belong to no
        single operator."""
        symbolizer = self._session.symbolizer
        step_callbacks = assumed_symbols.STEP_CALLBACKS.address(symbolizer)
        kept_as = f"shared callers {self._session.memory.architecture.name}"
        shared = []

        def is_shared(function: Function) -> bool:
            return not any(map(assumed_symbols.OPERATOR_STRUCT.begins, function.names))

        for module in self.modules() if step_callbacks else ():
            if module in self._extensions:
                continue
            names = assumed_symbols.STEP_CALLBACKS.names
            # A library that has a stub of its own function calls it through that: a second target slows the search.
            direct = () if import_stubs(module, self._session.memory.architecture, names) else (step_callbacks,)
            calls = partial(self._calls_of_imports, module, names, direct)
            for function in cached_functions(symbolizer, module, kept_as, calls, is_shared):
                try:
                    sites = self.functions.finder.find(function.start, function.size)
                except MemoryFault:
                    continue
                if sites and sites.how == "inlined" and sites.entry:
                    role = classify(function)
                    event = "callBoxed" if _boxed_invocations(sites) else "call"
                    event = role.event if role.role is Role.DISPATCHER else event
                    shared.append(SharedLookup(function, sites, event))
        return shared

    @cached_property
    def own_lookups(self) -> list[SharedLookup]:
        """Every lookup in libraries and programs other than torch's: for calls and redispatches, inlined or not."""
        return [lookup for module in self._extensions for lookup in self.lookups_in(module)]

    def inlined_in_extensions(self) -> list[SharedLookup]:
        """The lookups of ``own_lookups`` that call no copy of ``OperatorEntry::lookup``."""
        return [lookup for lookup in self.own_lookups if lookup.sites.how == "inlined"]

    def not_seen(self) -> list[str]:
        """A clause for each library with operator calls that are not among ``own_lookups``."""
        counts = {module.name: len(self.not_seen_in(module)) for module in self._extensions}
        return [
            f"{counted(count, 'function')} of {name} {'looks' if count == 1 else 'look'} operators up in a way that is "
            "not recognized"
            for name, count in counts.items()
            if count
        ]

    def not_seen_in(self, module: Module) -> set[int]:
        """Start addresses of the functions of a library that call operators, or report a missing kernel, and have no
        known lookup."""
        seen = {lookup.function.start for lookup in self.lookups_in(module)} | {*self.copies(module)}
        calls = self._calls_of_imports(
            module, (*assumed_symbols.STEP_CALLBACKS.names, *assumed_symbols.REPORT_ERROR.examples)
        )
        return {function.start for function in self._functions_at(calls)} - seen

    def open_at(self, lookup: int) -> IsOpen | None:
        """A predicate on return addresses in the function around the address of a lookup: True if the kernel of the
        last lookup is still being called there, and for code of another function, to which it jumped. None for an
        operator's own function, which does nothing else."""
        function = self._session.dispatch_stacks.sites.function_at(lookup)
        if not function or classify(function).role is Role.OPERATOR:
            return None
        if known := self._open_checks.get(function.start):
            return known
        inside, finder = range(function.start, function.start + function.size), self.functions.finder
        code = cache(lambda: finder.code(inside))

        @cache
        def is_open(returns_to: int) -> bool:
            """``open_at`` for a return address; inside the function the code that leads there decides."""
            if returns_to not in inside:
                return True
            passed = walk_cfg_back(code(), returns_to, finder.dispatch_step, finder.never_returns)
            return not passed or "kernel" not in passed[0]

        self._open_checks[function.start] = is_open
        return is_open

    def endings(self, function: Function) -> tuple[list[tuple[int, CfaRule]], bool]:
        """([(address after a call of a kernel or of code that enters one, rule of the CFA there)], True if the function
        may leave by a jump into one)."""
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
        copies = {*self.functions.addresses_named(assumed_symbols.LOOKUP, [module])}
        for function in self._functions_at(self._table_accesses(module)):
            if not function.names and self.functions.finder.is_lookup(function.start):
                copies.add(function.start)
        return sorted(copies)

    def lookups_in(self, module: Module) -> Sequence[SharedLookup]:
        """Every lookup in one library: for calls and redispatches, inlined or not."""
        if module.start not in self._in_modules:
            lookups = []
            copies = self.copies(module)
            calls = self._calls_of_imports(module, assumed_symbols.LOOKUP.examples, copies)
            for function in self._functions_at([*calls, *self._table_accesses(module)]):
                if function.start not in copies:
                    role = classify(function)
                    for lookup in self._lookups_of(function):
                        event = role.event if role.role is Role.DISPATCHER else lookup.event
                        lookups.append(SharedLookup(function, lookup.sites, event))
            self._in_modules[module.start] = lookups
        return self._in_modules[module.start]

    def _lookups_of(self, function: Function) -> list[FoundLookup]:
        """All lookups in a function; [] if its code cannot be read."""
        try:
            return self.functions.finder.all_lookups(function)
        except MemoryFault:
            return []

    def event_at(self, returns_to: int) -> str:
        """The event of the last lookup before a return address; "" if its function cannot be read."""
        function = self._session.dispatch_stacks.sites.function_at(returns_to - 1)
        lookups = self._lookups_of(function) if function else ()
        return next((lookup.event for lookup in reversed(lookups) if lookup.sites.lookup < returns_to), "")

    def _functions_at(self, addresses: Collection[int]) -> list[Function]:
        """The functions around these addresses, each once."""
        function_at = self._session.dispatch_stacks.sites.function_at
        functions: dict[int, Function] = {}
        for function in filter(None, map(function_at, addresses)):
            functions.setdefault(function.start, function)
        return list(functions.values())

    def _table_accesses(self, module: Module) -> list[int]:
        """Addresses at which code of one library computes the address of an operator's table entry, ascending."""
        return sorted({address for address, _ in self.passages(module, tuple)})

    def passages(self, module: Module, targets: Callable[[], Collection[int]]) -> Iterator[tuple[int, int]]:
        """(address, target) of the direct calls of ``targets`` in one library, and (address, 0) of its table accesses,
        some of them twice. Child processes search a large library, and call ``targets``, while the caller works.
        """
        architecture, shift = self._session.memory.architecture, self.functions.finder.shift
        # Of the first entry of an operator's table, and of the first one after those of the backends.
        table = OperatorEntry.dispatchTable_.field(self._session.layout).offset
        displacements = table, table + KEYSET_BITS * KernelFunctionStruct.shape(self._session.layout).size

        def packed_passages(part: Part) -> Iterator[bytes]:
            """(address, target) pairs as bytes, of one part of the library's code."""
            wanted = frozenset(targets())
            for start, code in text_pieces(module, 2 * _SHIFT_DISTANCE, part):
                calls = architecture.direct_calls(code, [target - start for target in wanted])
                passages = [(start + offset, start + target) for offset, target in calls]
                for displacement in displacements:
                    accesses = architecture.table_accesses(code, displacement, shift, _SHIFT_DISTANCE)
                    passages += [(start + offset, 0) for offset in accesses]
                yield b"".join(_PASSAGE.pack(*passage) for passage in sorted(passages))

        text = module.image.sections.get(".text") if module.image else None
        pieces = packed_passages(WHOLE)
        # One process searches 64 MB of code in a quarter of a second: more is worth a child process.
        if text and text.size >= 1 << 26 and self.may_use_children:
            halves = [stream_from_child(partial(packed_passages, half), _PASSAGE.size) for half in HALVES]
            pieces = chain.from_iterable(halves)
        return chain.from_iterable(map(_PASSAGE.iter_unpack, pieces))

    @property
    def may_use_children(self) -> bool:
        """True if child processes can work in parallel: no debugger is in this process, and there is another CPU."""
        target = self._session.target
        is_own_process = isinstance(target, RunningProcess) and not target.inside_debugger
        return is_own_process and len(os.sched_getaffinity(0)) > 1

    def _calls_of_imports(self, module: Module, names: Collection[str], also: Collection[int] = ()) -> list[int]:
        """Addresses of the calls in one library of functions by name, through its PLT or (-fno-plt) the slots of its
        imports, and of the direct calls of the addresses ``also``; ascending."""
        architecture = self._session.memory.architecture
        slots = imported_slots(module.image, names) if module.image else ()
        targets = {*also, *import_stubs(module, architecture, names)}
        calls: set[int] = set()
        for start, code in text_pieces(module, 16):  # bytes of the longest call instruction
            if slots:
                through = architecture.slot_calls(code, {module.base + slot - start for slot in slots})
                calls.update(start + offset for offset, _ in through)
            direct = architecture.direct_calls(code, [target - start for target in targets])
            calls.update(start + offset for offset, _ in direct)
        return sorted(calls)

    def boxed_calls(self) -> list[int]:
        """Addresses at which ``callBoxed`` calls a kernel's boxed function, with its four arguments in registers."""
        lookups = (*self.shared_lookups(), *self.own_lookups)
        boxed = (shared.sites for shared in lookups if shared.event == "callBoxed")
        return [address for sites in boxed for address in _boxed_invocations(sites)]

    def boxed_event(self, returns_to: int) -> str:
        """The event of a call of a boxed function, by its return address; "" inside an unboxed call, which has its own
        lookup."""
        if returns_to not in self._boxed_events:
            try:
                function = self._session.symbolizer.function(returns_to - 1)
            except GdbextError:
                function = None
            role, event = classify(function), ""
            if function and role.role is not Role.OPERATOR and role.role.opens:
                event = role.event
            elif function and role.role is not Role.OPERATOR and not role.role.is_layer:
                step_callbacks = assumed_symbols.STEP_CALLBACKS.address(self._session.symbolizer)
                is_call = step_callbacks in self.functions.calls_of(function)
                event = "callBoxed" if is_call else "redispatchBoxed"
            self._boxed_events[returns_to] = event
        return self._boxed_events[returns_to]
