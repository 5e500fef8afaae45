"""Finds the functions of the target that belong to an operator, so that a stop in them slows no other operator.

``at::_ops::NAME::call`` and ``::redispatch`` are an operator's own (NAME is its name and overload joined by an
underscore, torchgen/model.py). Boxed calls go through ``Dispatcher::callBoxed``, which all operators share; the boxed
entries of the operator's own kernels see them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cache import cache_folder
from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.formats.symbol_cache import kept_texts
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Function, Symbolizer
from gdbext.engine.unwind.frame_steps import CfaRule
from gdbext.torch import assumed_symbols
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.stack.lookup_sites import LookupSites, SiteFinder
from gdbext.torch.stack.roles import operator_method, static_handles
from gdbext.torch.structures import KernelFunctionStruct, OperatorEntry
from gdbext.torch.torch_symbol import TorchSymbol

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.live.breakpoint_setter import BreakpointSetter, StoppedThread, Trap
    from gdbext.torch.registry import Operator

_FUNCTIONS_FOLLOWED = 200
"""Wrappers that are decoded in search of an operator's structured kernels; mm has 40."""


class OperatorFunction(NamedTuple):
    """A function with the dispatcher inlined for one operator; ``event`` is "call" or "redispatch"."""

    operator: Operator
    event: str
    function: Function
    sites: LookupSites


class BoxedEntry(NamedTuple):
    """The boxed entry of one of an operator's own kernels: called with functor, OperatorHandle&, keyset, stack."""

    operator: Operator
    address: int


class OperatorFunctions:
    """Finds functions; one instance per session."""

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
    def _structs(self) -> dict[str, list[tuple[str, int, int]]]:
        """NAME of ``at::_ops::NAME`` → (event, address, size) of its functions."""
        session = self._session
        module = session.modules.named(assumed_symbols.OPERATOR_STRUCT.library)
        index = session.symbolizer.index(module) if module else None
        if not module or not index:
            return {}
        found: dict[str, list[tuple[str, int, int]]] = {}
        for symbol in index.matching(assumed_symbols.OPERATOR_STRUCT.names[0].encode()):
            if symbol.is_function and "." not in symbol.name:
                struct, event = operator_method(symbol.name)
                if event:
                    found.setdefault(struct, []).append((event, module.base + symbol.vaddr, symbol.size))
        return found

    def read_names(self) -> None:
        """Read the names of all operators' functions now, which ``extents`` needs."""
        self._structs  # noqa: B018

    def extents(self, operator: Operator) -> list[tuple[str, int, int]]:
        """(event, address, size) of the operator's own functions, "call" first."""
        return sorted(self._structs.get(operator.struct, ()))

    def functions(self, operator: Operator) -> list[OperatorFunction]:
        """The operator's own functions, "call" first; empty for one that was not generated into libtorch.

        Raises MemoryFault, BadData.
        """
        found = []
        for event, address, _ in self.extents(operator):
            function = self._session.symbolizer.function(address)
            if function and self._is_for(operator, function):
                handles = static_handles(self._session.symbolizer, function)
                sites = self.finder.find(function.start, function.size, handles)
                if sites:
                    found.append(OperatorFunction(operator, event, function, sites))
        return found

    def _is_for(self, operator: Operator, function: Function) -> bool:
        """The function's static handle is this operator's, or not initialised yet."""
        handles = static_handles(self._session.symbolizer, function)
        held = {self._session.memory.try_u64(handle) for handle in handles}
        return not held - {0, None, operator.address}

    def boxed_entries(self, operator: Operator) -> list[BoxedEntry]:
        """Boxed entries of the operator's kernels that no other operator shares. Raises MemoryFault."""
        symbolizer = self._session.symbolizer
        addresses = dict.fromkeys(kernel.boxed for kernel in operator.table if kernel.valid)
        found = []
        for address in addresses:
            names = symbolizer.names_at(address)
            if names and all(
                assumed_symbols.BOXED_FROM_UNBOXED.begins(name) and assumed_symbols.RUNTIME_FUNCTOR_CLASS not in name
                for name in names
            ):
                found.append(BoxedEntry(operator, address))
        return found

    def python_entries(self) -> list[int]:
        """The boxed functions that all kernels share which are Python functions."""
        module = self._session.modules.named(assumed_symbols.BOXED_FUNCTOR.library)
        index = self._session.symbolizer.index(module) if module else None
        if not module or not index:
            return []
        symbols = (symbol for name in assumed_symbols.BOXED_FUNCTOR.names for symbol in index.matching(name.encode()))
        found = {
            module.base + each.vaddr
            for each in symbols
            if each.is_function and assumed_symbols.PYTHON_KERNEL_CLASS in each.name
        }
        return sorted(found)

    def addresses_named(self, family: TorchSymbol, modules: Sequence[Module]) -> list[int]:
        """Addresses of the functions of a family, in these modules; no cold parts."""
        found = set()
        for module in modules:
            index = self._session.symbolizer.index(module)
            for symbol in index.matching(family.names[0].encode()) if index else ():
                if symbol.is_function and family.begins(symbol.name) and ".cold" not in symbol.name:
                    found.add(module.base + symbol.vaddr)
        return sorted(found)

    def structured(self, operator: Operator) -> list[tuple[str, Function]]:
        """("meta" or "impl", function) of the operator's structured kernels: ``at::meta::structured_NAME::meta`` and
        ``at::native::structured_FUNCTION::impl`` as its kernels' code calls them."""
        found: dict[int, tuple[str, Function]] = {}
        todo = [kernel.unboxed for kernel in operator.table if kernel.unboxed]
        seen: set[int] = set()
        while todo and len(seen) < _FUNCTIONS_FOLLOWED:
            start = todo.pop()
            function = self._session.symbolizer.function(start) if start not in seen else None
            seen.add(start)
            if not function:
                continue
            kind = structured_kind(function.names)
            if kind:
                found[function.start] = (kind, function)
            elif is_wrapper_code(function.names):
                todo += self.calls_of(function)
        return [found[start] for start in sorted(found)]

    def calls_of(self, function: Function) -> set[int]:
        """Targets of the function's direct calls and jumps out of it, through PLT stubs."""
        memory = self._session.memory
        inside = range(function.start, function.start + function.size)
        targets = (one.target for one in self.code(function) if one.kind in ("call", "jmp"))
        found = {follow_stub(memory, target) for target in targets if target and target not in inside}
        return found - {0}

    def returns(self, function: Function) -> list[int]:
        """Addresses of the function's ``ret`` instructions."""
        return [one.address for one in self.code(function) if one.kind == "ret"]

    def code(self, function: Function) -> Sequence[Instruction]:
        """The instructions of a function, which are kept until another's are asked for; none where it cannot be
        read."""
        return self.finder.code(range(function.start, function.start + function.size))


class OpenCalls:
    """The calls of operators that have begun and not ended, by thread and frame."""

    def __init__(self) -> None:
        self._operators: dict[tuple[int, int], int] = {}

    def begins(self, thread: StoppedThread, frame: CfaRule, operator: int, wanted: bool) -> None:
        """A lookup was passed in a frame. One that is not ``wanted`` ends what was open there. Raises TargetError."""
        place = _place(thread, frame)
        if wanted:
            self._operators[place] = operator
        else:
            self._operators.pop(place, None)

    def is_open(self, thread: StoppedThread, frame: CfaRule, operator: int) -> bool:
        """The frame is inside of a call of the operator. Raises TargetError."""
        return self._operators.get(_place(thread, frame)) == operator

    def ends(self, thread: StoppedThread, frame: CfaRule) -> None:
        """The call in the frame is over. Raises TargetError."""
        self._operators.pop(_place(thread, frame), None)


def cfa_in(thread: StoppedThread, frame: CfaRule) -> int:
    """The CFA that the rule finds for a thread that stands at its place. Raises TargetError."""
    return thread.register(frame.register) + frame.offset


def _place(thread: StoppedThread, frame: CfaRule) -> tuple[int, int]:
    return thread.tid, cfa_in(thread, frame)


class Opening(NamedTuple):
    """A lookup that opens a call: the register that holds the OperatorEntry* there, and the rule of its frame.

    ``jumps``: the function may leave by a jump, so that the call ends where that returns to."""

    address: int
    entry: str
    frame: CfaRule
    jumps: bool


class CallOpenings:
    """The traps at lookups which open calls whose ends are stopped at."""

    def __init__(self, setter: BreakpointSetter, opens: Callable[[StoppedThread, Opening], None]) -> None:
        """``opens`` is called at each lookup, by the thread that makes it."""
        self._setter = setter
        self._opens = opens
        self._traps: dict[int, Trap] = {}

    def watch(self, openings: Sequence[Opening]) -> None:
        """Set a trap at each of these lookups that has none. Raises TargetError."""
        for opening in openings:
            if opening.address not in self._traps:
                reached = partial(self._reached, opening)
                self._traps[opening.address] = self._setter.set_trap(opening.address, reached)

    def _reached(self, opening: Opening, thread: StoppedThread) -> None:
        self._opens(thread, opening)

    def close(self) -> None:
        """Remove all traps of this object."""
        for trap in self._traps.values():
            trap.delete()
        self._traps = {}


def functions_kept(
    symbolizer: Symbolizer,
    module: Module,
    what: str,
    places: Callable[[], Iterable[int]],
    wanted: Callable[[Function], bool],
) -> list[Function]:
    """The functions of a library around the places that are wanted, in the order of the places.

    To find places in a library as large as torch's takes a second or two, and what is found in the same file is the
    same: where they begin is kept in the user's cache, of each file by ``what`` was looked for.
    """
    key = module.kept_as
    name, kept = f"{what} {key}".encode(), kept_texts(cache_folder(), "callers")
    text = kept.text(name) if key else None
    if text is not None:
        return _functions_around(symbolizer, (module.base + int(word, 16) for word in text.split()))
    found = [function for function in _functions_around(symbolizer, places()) if wanted(function)]
    if key:
        kept.keep(name, " ".join(f"{function.start - module.base:x}" for function in found).encode())
    return found


def _functions_around(symbolizer: Symbolizer, addresses: Iterable[int]) -> list[Function]:
    functions = {found.start: found for found in map(symbolizer.function, addresses) if found}
    return list(functions.values())


def structured_kind(names: Sequence[str]) -> str:
    """ "meta" or "impl" for the functions that TORCH_META_FUNC and TORCH_IMPL_FUNC define, else ""."""
    for name in names:
        if assumed_symbols.STRUCTURED_META.begins(name) and assumed_symbols.STRUCTURED in name and "4metaE" in name:
            return "meta"
        if assumed_symbols.STRUCTURED_IMPL.begins(name) and assumed_symbols.STRUCTURED in name and "4implE" in name:
            return "impl"
    return ""


def is_wrapper_code(names: Sequence[str]) -> bool:
    """Generated code between the table and a structured kernel (RegisterCPU.cpp and its like)."""
    return any(part in name for name in names for part in assumed_symbols.GENERATED_WRAPPERS)
