"""dispatch-break: at which addresses to stop for an operator, and under which conditions. Knows no debugger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.errors import TargetError, UsageError
from gdbext.live.all_calls import AllCalls, SharedLookup
from gdbext.live.breakpoint_setter import (
    ALWAYS,
    AllOf,
    AnyOf,
    Bits,
    Choice,
    Equals,
    Pointee,
    Register,
    Told,
    both,
)
from gdbext.live.operator_functions import OpenCalls, Opening, OperatorFunction, OperatorFunctions
from gdbext.live.registrations import generated_functions, is_generated, not_loaded
from gdbext.tools.breaks.breaks_section import BreakRequest
from gdbext.torch.assumed_symbols import COMPUTE_ENTRY
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.values.key_names import KeyNames

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.unwind.frame_steps import CfaRule
    from gdbext.live.breakpoint_setter import Breakpoint, Condition, Value
    from gdbext.torch.registry import Operator
    from gdbext.torch.registry.dispatch_table import ComputedEntry
    from gdbext.torch.registry.kernel import KernelFunction


PLACES = ("call", "redispatch", "lookup", "boxed", "kernel", "meta", "impl", "register", "return")
"""The values of WHERE: ``lookup`` is call and redispatch; ``boxed`` the kernels' boxed entries; ``register`` the
computation of a table entry; ``return`` the ends of call and redispatch."""
WITH_KEYSET = ("call", "redispatch", "lookup", "boxed", "kernel")


@dataclass(frozen=True)
class BreakSite:
    """One address where to stop for an operator. ``keyset`` is where the keyset is then, None without one.

    ``event`` is one of PLACES other than "lookup"; ``what`` names the place.
    """

    address: int
    event: str
    operator: int
    name: str
    what: str
    keyset: Value | None = None
    condition: Condition = ALWAYS
    arguments: ArgumentPlace | None = None
    """The places of the operator's arguments, None where they are not known."""
    frame: CfaRule | None = None
    """The end of a call in the frame that this rule finds, which one of ``openings`` has opened."""
    openings: tuple[Opening, ...] = ()


@dataclass(frozen=True)
class ArgumentPlace:
    """Argument registers hold the operator's arguments, behind the first ``skipped``: at the site itself, or where the
    ``function`` [start, end) was entered in the middle of which the site is."""

    skipped: int
    function: tuple[int, int] | None = None


@dataclass
class Placed:
    """A breakpoint of a request, and what it is for: a site; or something that is awaited."""

    breakpoint: Breakpoint
    site: BreakSite | None = None
    awaits: str = ""


_CALLS_DEEP = 4
"""Functions between a kernel's boxed entry and its unboxed one, without optimisation: ``call``,
``call_functor_with_args_from_stack``, the same with an underscore (make_boxed_from_unboxed_functor.h)."""


class BreakPlan:
    """Finds the sites of a request in one session."""

    def __init__(self, session: Session, open_calls: OpenCalls) -> None:
        """``open_calls`` knows the calls that have begun while the process ran."""
        self._session = session
        self._open_calls = open_calls
        self._keys = session.dispatcher.keys
        self._functions = OperatorFunctions(session)
        self._all_calls = AllCalls(session, self._functions)
        self._leads: dict[int, frozenset[int]] = {}
        """The same functions are on the way from a hundred kernels of an operator."""
        self._arguments = [Register(name) for name in session.memory.architecture.argument_registers]

    def missing(self, patterns: Sequence[str]) -> dict[str, UsageError]:
        """The patterns that mean no operator yet, each with an error that has the closest names."""
        dispatcher = self._session.dispatcher
        found = {
            pattern: dispatcher.unknown(pattern)
            for pattern in patterns
            if not is_generated(pattern) and not dispatcher.find(pattern)
        }
        for pattern in filter(is_generated, patterns):
            if not generated_functions(self._session, pattern):
                found[pattern] = not_loaded(pattern)
        return found

    def not_seen(self, where: str) -> list[str]:
        """A sentence for each library with calls and redispatches that the breakpoints cannot see."""
        if where not in ("call", "redispatch", "lookup"):
            return []
        return [f"{text}: the process does not stop there" for text in self._all_calls.not_seen()]

    def operators(self, patterns: Sequence[str]) -> list[Operator]:
        """The operators that are named and registered."""
        find = self._session.dispatcher.find
        named = [pattern for pattern in patterns if not is_generated(pattern)]
        return list({each.address: each for pattern in named for each in find(pattern)}.values())

    def sites(self, request: BreakRequest) -> list[BreakSite]:
        """All sites, each address and condition once. Raises UsageError (keys), MemoryFault."""
        check_keys(self._keys, request)
        found: dict[tuple[int, Condition], BreakSite] = {}
        for operator in self.operators(request.op):
            for site in self._of(operator, request):
                limited = self._limited(site, request)
                found.setdefault((limited.address, limited.condition), limited)
        for pattern in filter(is_generated, request.op):
            for each in generated_functions(self._session, pattern):
                site = BreakSite(each.address, "kernel", 0, each.name, each.what, condition=each.condition)
                found.setdefault((site.address, site.condition), site)
        return list(found.values())

    def _limited(self, site: BreakSite, request: BreakRequest) -> BreakSite:
        """The site with the conditions on keys, where it has a keyset."""
        condition = site.condition
        if site.keyset and request.key and site.event != "kernel":
            condition = both(condition, key_condition(self._keys, site.keyset, request.key))
        if site.keyset and request.has:
            bits = self._keys.bits_of(request.has)
            condition = both(condition, Equals(Bits(site.keyset, bits), bits))
        return replace(site, condition=condition)

    def _of(self, operator: Operator, request: BreakRequest) -> list[BreakSite]:
        where = request.where
        if where in ("call", "redispatch", "lookup"):
            wanted = ("call", "redispatch") if where == "lookup" else (where,)
            functions = self._functions.functions(operator)
            own = self._shared(operator, self._all_calls.own_lookups, wanted)
            if not functions:
                return [*own, *self._shared(operator, self._shared_lookups, wanted)]
            return [*(site for each in functions if each.event in wanted for site in _lookup_sites(each)), *own]
        if where == "return":
            return [
                BreakSite(address, "return", operator.address, operator.qualified, f"the end of {each.event}")
                for each in self._functions.functions(operator)
                for address in each.sites.returns
            ] + list(self._ends(operator))
        if where in ("meta", "impl"):
            return self._structured(operator, where)
        if where == "register":
            return self._register(operator)
        return self._kernels(operator, where, request.key or "")

    def _shared(self, operator: Operator, lookups: Sequence[SharedLookup], wanted: Sequence[str]) -> list[BreakSite]:
        """Lookups that all operators share: ``Dispatcher::callBoxed``, for one without functions of its own, and those
        of programs and extensions."""
        found = []
        for shared in lookups:
            event = shared.event.replace("Boxed", "")
            if event in wanted:
                sites = shared.sites
                what = f"its lookup, in {shared.where}"
                condition = Equals(Register(sites.entry), operator.address)
                keyset = Register(sites.keyset)
                found += [
                    BreakSite(address, event, operator.address, operator.qualified, what, keyset, condition)
                    for address in (sites.lookup, *(each for each, _ in sites.others))
                ]
        return found

    def _ends(self, operator: Operator) -> Iterator[BreakSite]:
        """The ends of its calls and redispatches by functions that are for all operators: where these go on behind the
        kernel, if their last lookup was for this one."""
        functions: dict[int, list[SharedLookup]] = {}
        for shared in (*self._all_calls.own_lookups, *self._shared_lookups):
            functions.setdefault(shared.function.start, []).append(shared)
        for lookups in functions.values():
            ends, jumps = self._all_calls.endings(lookups[0].function)
            places = [
                (each.sites, at)
                for each in lookups
                for at in ((each.sites.lookup, each.sites.frame), *each.sites.others)
            ]
            openings = tuple(Opening(address, sites.entry, frame, jumps) for sites, (address, frame) in places)
            what = f"the end of its {lookups[0].event}, in {lookups[0].where}"
            for address, frame in ends:
                yield end_site(self._open_calls, operator.address, operator.qualified, address, what, frame, openings)

    def _structured(self, operator: Operator, where: str) -> list[BreakSite]:
        """The meta and impl functions of structured kernels; of an operator without, the kernels that were registered
        for Meta, or for backends."""
        functions = self._functions.structured(operator)
        if functions:
            return [
                BreakSite(each.start, kind, operator.address, operator.qualified, each.demangled[0].partition("(")[0])
                for kind, each in functions
                if kind == where
            ]
        wanted = [
            self._keys.key_of_index(entry.slot)
            for entry in self._session.tables.table(operator)
            if (entry.source == "Meta" if where == "meta" else self._is_backends(entry))
        ]
        found = (site for key in wanted for site in self._kernels(operator, "kernel", key))
        return list({(one.address, one.condition): replace(one, event=where) for one in found}.values())

    def _is_backends(self, entry: ComputedEntry) -> bool:
        """A kernel that computes: it was registered for a backend, or for all of them, and not for autograd."""
        has_backend = self._keys.slots[entry.slot].bits & self._keys.backend_mask
        other = entry.key.startswith("Autograd") or entry.key.endswith("Meta") or entry.source in ("fallback", "")
        return bool(has_backend) and not other

    @cached_property
    def _shared_lookups(self) -> list[SharedLookup]:
        return self._all_calls.shared_lookups()

    def _register(self, operator: Operator) -> list[BreakSite]:
        address = COMPUTE_ENTRY.address(self._session.symbolizer)
        if not address:
            return []
        what = "computeDispatchTableEntryWithDebug"
        condition = Equals(self._arguments[0], operator.address)
        return [BreakSite(address, "register", operator.address, operator.qualified, what, None, condition)]

    def _kernels(self, operator: Operator, where: str, key: str) -> list[BreakSite]:
        """Each distinct kernel (``kernel``), or each distinct boxed entry (``boxed``), of the operator's table."""
        kernels = self._session.dispatcher.kernels
        slots = [self._keys.index_of_key(key)] if key and where == "kernel" else range(self._keys.num_slots)
        found: dict[tuple[int, Condition], BreakSite] = {}
        for slot in slots:
            kernel = operator.table[slot]
            if not kernel.valid or kernels.fallthrough(kernel) or kernels.ambiguous(kernel):
                continue
            named = kernels.name(kernel, self._keys.key_of_index(slot), operator.name)
            # All Python kernels have the same entry, also those that are registered after this.
            name = named.function if named.kind != "python" else "Python kernels"
            if where == "boxed":
                sites = [_boxed_site(self._arguments, operator, kernel, name, where)]
            else:
                sites = self._entries(operator, kernel, name)
            for site in sites:
                found.setdefault((site.address, site.condition), site)
        return list(found.values())

    def _entries(self, operator: Operator, kernel: KernelFunction, name: str) -> list[BreakSite]:
        """The places where the kernel is entered: its unboxed function, and its boxed one unless that calls the other.

        A compiler inlines the kernel into both, and the autograd fallback of PyTorch enters by the boxed one.
        """
        unboxed = kernel.unboxed or kernel.sym_unboxed
        site = _kernel_site(self._arguments, operator, kernel, name)
        if not unboxed or self._reaches(kernel.boxed, unboxed):
            return [site]
        boxed = _boxed_site(self._arguments, operator, kernel, name, "kernel")
        if kernel.functor:  # kernels of other keys may have the same boxed function
            boxed = replace(boxed, condition=both(boxed.condition, Equals(self._arguments[0], kernel.functor)))
        return [replace(site, what=f"{name}, entered unboxed"), boxed]

    def _reaches(self, function: int, target: int, depth: int = _CALLS_DEEP) -> bool:
        """The function calls or jumps to the target, or what it calls does."""
        leads = self._leads.get(function)
        if leads is None:
            leads = self._leads[function] = self._leads_to(function)
        return target in leads or (depth > 1 and any(self._reaches(each, target, depth - 1) for each in leads))

    def _leads_to(self, function: int) -> frozenset[int]:
        """The functions that one calls or jumps to by their addresses."""
        sites = self._session.dispatch_stacks.sites
        code = sites.function_at(function)
        if not code or code.start != function:
            return frozenset()
        targets = {one.target for one in sites.decoded(code).instructions if one.kind in ("call", "jmp")}
        leads = {follow_stub(self._session.memory, target) for target in targets if target}
        return frozenset(each for each in leads if each and not 0 <= each - code.start < code.size)


def end_site(
    open_calls: OpenCalls,
    operator: int,
    name: str,
    address: int,
    what: str,
    frame: CfaRule,
    openings: tuple[Opening, ...] = (),
) -> BreakSite:
    """The place where a call of the operator ends, if one is open in the frame."""
    told = Told(("end", operator, frame), lambda thread: open_calls.is_open(thread, frame, operator))
    return BreakSite(address, "return", operator, name, what, None, told, frame=frame, openings=openings)


def is_readable(session: Session) -> bool:
    """Torch is loaded, and its operators can be read."""
    if not session.has_torch:
        return False
    try:
        return bool(session.dispatcher.entries)
    except TargetError:
        return False


def what_is_awaited(request: BreakRequest) -> str:
    """Name what must be registered so that there is something to stop at. Raises UsageError: nothing would help."""
    if request.where in ("kernel", "boxed", "meta", "impl"):
        key = request.key or {"meta": "Meta", "impl": "a backend"}.get(request.where)
        key = f" for {key}" if key else ""
        return f"a kernel of {', '.join(request.op)}{key} is registered"
    raise UsageError(
        f"nothing to stop at: {', '.join(request.op)} has no {request.where} of its own",
        help="dispatch-break boxed OP or dispatch-break kernel OP work for every operator",
    )


def check_keys(keys: KeyNames, request: BreakRequest) -> None:
    """Raises UsageError for names that are not keys, and where the place has no keyset."""
    for name in (request.key, request.has):
        if name:
            keys.bits_of(name)
    check_keyset(request)


def check_keyset(request: BreakRequest) -> None:
    """Raises UsageError for keys at a place that has no keyset, which can be told before there is any torch."""
    if (request.key or request.has) and request.where not in WITH_KEYSET:
        raise UsageError(
            f"at {request.where} there is no keyset that could be tested", help=f"use one of: {', '.join(WITH_KEYSET)}"
        )


def key_condition(keys: KeyNames, keyset: Value, key: str) -> Condition:
    """``highestPriorityTypeId() == key``: the highest functionality, and the highest backend where it counts."""
    bits = keys.slots[keys.index_of_key(key)].bits
    functionality = (bits >> keys.num_backends).bit_length()
    if not functionality:
        return Equals(Bits(keyset, shift=keys.num_backends), 0)
    condition = Equals(Bits(keyset, shift=keys.num_backends + functionality - 1), 1)
    backend = (bits & keys.backend_mask).bit_length()
    if not backend:
        return condition
    return AllOf((condition, Equals(Bits(keyset, keys.backend_mask, backend - 1), 1)))


def _lookup_sites(function: OperatorFunction) -> list[BreakSite]:
    operator, sites = function.operator, function.sites
    what = f"its lookup, in {function.function.demangled[0].partition('(')[0]}"
    addresses = [sites.lookup, *(address for address, _ in sites.others)]
    span = (function.function.start, function.function.start + function.function.size)
    arguments = ArgumentPlace(0 if function.event == "call" else 1, span)  # redispatch has the keyset first
    return [
        BreakSite(
            address,
            function.event,
            operator.address,
            operator.qualified,
            what,
            Register(sites.keyset),
            arguments=arguments,
        )
        for address in addresses
    ]


def _boxed_site(
    arguments: Sequence[Register], operator: Operator, kernel: KernelFunction, name: str, event: str
) -> BreakSite:
    """A boxed entry: functor, OperatorHandle&, keyset (BoxedKernel.h); other operators may share it."""
    condition = Equals(Pointee(arguments[1]), operator.address)
    what = f"the boxed entry of {name}"
    return BreakSite(kernel.boxed, event, operator.address, operator.qualified, what, arguments[2], condition)


def _kernel_site(arguments: Sequence[Register], operator: Operator, kernel: KernelFunction, name: str) -> BreakSite:
    """An unboxed entry: functor and keyset, behind the hidden result pointer if there is one (KernelFunction_impl.h).

    The functor object belongs to one registration, so it separates this operator's kernel from others' folded code.
    """
    address = kernel.unboxed or kernel.sym_unboxed
    if not address:
        return _boxed_site(arguments, operator, kernel, name, "kernel")
    first, second, third = arguments[:3]
    without_result = Equals(first, kernel.functor)
    return BreakSite(
        address,
        "kernel",
        operator.address,
        operator.qualified,
        name,
        Choice(without_result, second, third),
        AnyOf((without_result, Equals(second, kernel.functor))),
        ArgumentPlace(2),
    )
