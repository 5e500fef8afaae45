"""Finds the functions of the target that belong to an operator, so that a stop in them slows no other operator.

``at::_ops::NAME::call`` and ``::redispatch`` are an operator's own (NAME is its name and overload joined by an
underscore, torchgen/model.py). Boxed calls go through ``Dispatcher::callBoxed``, which all operators share; the boxed
entries of the operator's own kernels see them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cache import cache_folder
from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.formats.symbol_cache import text_cache
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Function, Symbolizer
from gdbext.torch import assumed_symbols
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.stack.lookup_sites import LookupSites, SiteFinder
from gdbext.torch.stack.roles import operator_method, static_handles
from gdbext.torch.structures import KernelFunctionStruct, OperatorEntry
from gdbext.torch.torch_symbol import TorchSymbol

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.torch.registry import Operator

_FUNCTIONS_FOLLOWED = 200
"""Wrappers that are decoded in search of an operator's structured kernels; mm has 40."""


class OperatorFunction(NamedTuple):
    """A function with the dispatcher inlined for one operator; ``event`` is "call" or "redispatch"."""

    operator: Operator
    event: str
    function: Function
    sites: LookupSites


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
    def structs(self) -> dict[str, list[tuple[str, int, int]]]:
        """NAME of ``at::_ops::NAME`` → (event, address, size) of its functions."""
        session = self._session
        module = session.modules.named(assumed_symbols.OPERATOR_STRUCT.library)
        index = session.symbolizer.index(module) if module else None
        structs: dict[str, list[tuple[str, int, int]]] = {}
        if module and index:
            for symbol in index.matching(assumed_symbols.OPERATOR_STRUCT.names[0].encode()):
                if symbol.is_function and "." not in symbol.name:
                    struct, event = operator_method(symbol.name)
                    if event:
                        structs.setdefault(struct, []).append((event, module.base + symbol.vaddr, symbol.size))
        return structs

    def extents(self, operator: Operator) -> list[tuple[str, int, int]]:
        """(event, address, size) of the operator's own functions, "call" first."""
        return sorted(self.structs.get(operator.struct, ()))

    def functions(self, operator: Operator) -> list[OperatorFunction]:
        """The operator's own functions, "call" first; empty for one that was not generated into libtorch.

        Raises MemoryFault, BadData.
        """
        symbolizer, functions = self._session.symbolizer, []
        for event, address, _ in self.extents(operator):
            function = symbolizer.function(address)
            if not function:
                continue
            handles = static_handles(symbolizer, function)
            # The static handle is this operator's, or not initialized yet.
            if {self._session.memory.try_u64(handle) for handle in handles} - {0, None, operator.address}:
                continue
            sites = self.finder.find(function.start, function.size, handles)
            if sites:
                functions.append(OperatorFunction(operator, event, function, sites))
        return functions

    def boxed_entries(self, operator: Operator) -> list[int]:
        """Boxed entries of the operator's kernels that no other operator shares; they are called with functor,
        OperatorHandle&, keyset, stack. Raises MemoryFault."""

        def is_own(name: str) -> bool:
            from_unboxed = assumed_symbols.BOXED_FROM_UNBOXED.begins(name)
            return from_unboxed and assumed_symbols.RUNTIME_FUNCTOR_CLASS not in name

        addresses = dict.fromkeys(kernel.boxed for kernel in operator.table if kernel.valid)
        named = {address: self._session.symbolizer.names_at(address) for address in addresses}
        return [address for address, names in named.items() if names and all(map(is_own, names))]

    def python_entries(self) -> list[int]:
        """The boxed functions that all kernels share which are Python functions."""
        module = self._session.modules.named(assumed_symbols.BOXED_FUNCTOR.library)
        index = self._session.symbolizer.index(module) if module else None
        if not module or not index:
            return []
        symbols = (symbol for name in assumed_symbols.BOXED_FUNCTOR.names for symbol in index.matching(name.encode()))
        python_class = assumed_symbols.PYTHON_KERNEL_CLASS
        named = (symbol for symbol in symbols if symbol.is_function and python_class in symbol.name)
        return sorted({module.base + symbol.vaddr for symbol in named})

    def addresses_named(self, family: TorchSymbol, modules: Sequence[Module]) -> list[int]:
        """Addresses of the functions of a family, in these modules; no cold parts."""
        addresses = set()
        for module in modules:
            index = self._session.symbolizer.index(module)
            for symbol in index.matching(family.names[0].encode()) if index else ():
                if symbol.is_function and family.begins(symbol.name) and ".cold" not in symbol.name:
                    addresses.add(module.base + symbol.vaddr)
        return sorted(addresses)

    def structured(self, operator: Operator) -> list[tuple[str, Function]]:
        """("meta" or "impl", function) of the operator's structured kernels: ``at::meta::structured_NAME::meta`` and
        ``at::native::structured_FUNCTION::impl`` as its kernels' code calls them."""
        structured: dict[int, tuple[str, Function]] = {}
        to_follow = [kernel.unboxed for kernel in operator.table if kernel.unboxed]
        seen: set[int] = set()
        while to_follow and len(seen) < _FUNCTIONS_FOLLOWED:
            start = to_follow.pop()
            function = self._session.symbolizer.function(start) if start not in seen else None
            seen.add(start)
            if not function:
                continue
            kind = _structured_kind(function.names)
            if kind:
                structured[function.start] = (kind, function)
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
        """The instructions of a function, which are kept until another's are asked for; none where it cannot be
        read."""
        return self.finder.code(range(function.start, function.start + function.size))


def cached_functions(
    symbolizer: Symbolizer,
    module: Module,
    what: str,
    places: Callable[[], Iterable[int]],
    wanted: Callable[[Function], bool],
) -> list[Function]:
    """The wanted functions around these places of a library, in the order of the places.

    To find places in a library as large as torch's takes a second or two, and the result depends on the file alone:
    the starts of the functions are kept in the user's cache, for each file and ``what``.
    """

    def around(addresses: Iterable[int]) -> list[Function]:
        functions = {function.start: function for function in map(symbolizer.function, addresses) if function}
        return list(functions.values())

    key = module.kept_as
    name, cache = f"{what} {key}".encode(), text_cache(cache_folder(), "callers")
    text = cache.text(name) if key else None
    if text is not None:
        return around(module.base + int(word, 16) for word in text.split())
    functions = [function for function in around(places()) if wanted(function)]
    if key:
        cache.keep(name, " ".join(f"{function.start - module.base:x}" for function in functions).encode())
    return functions


def _structured_kind(names: Sequence[str]) -> str:
    """ "meta" or "impl" for the functions that TORCH_META_FUNC and TORCH_IMPL_FUNC define, else ""."""
    for name in names:
        if assumed_symbols.STRUCTURED_META.begins(name) and assumed_symbols.STRUCTURED in name and "4metaE" in name:
            return "meta"
        if assumed_symbols.STRUCTURED_IMPL.begins(name) and assumed_symbols.STRUCTURED in name and "4implE" in name:
            return "impl"
    return ""
