"""dispatch-break: the addresses at which to stop for an operator, and the conditions; independent of the debugger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.unwind.frame_steps import CfaRule
from gdbext.errors import UsageError
from gdbext.live.breakpoint_setter import (
    ALWAYS,
    AllOf,
    AnyOf,
    Bits,
    Choice,
    Equals,
    Pointee,
    PythonCondition,
    Register,
    conjunction,
)
from gdbext.live.dispatch_places import AllCalls, OperatorFunction, SharedLookup
from gdbext.live.registrations import generated_functions, is_generated, not_loaded
from gdbext.tools.breaks.breaks_section import BreakRequest
from gdbext.torch.assumed_symbols import COMPUTE_ENTRY, REPORT_ERROR
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.values.key_names import KeyNames

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.live.breakpoint_setter import Condition, StoppedThread, Value
    from gdbext.torch.registry import Operator
    from gdbext.torch.registry.dispatch_table import ComputedEntry
    from gdbext.torch.registry.kernel import KernelFunction


PLACES = ("call", "redispatch", "lookup", "boxed", "kernel", "meta", "impl", "register", "return", "missing")
"""The values of WHERE, which the command's help explains."""
MISSING = "missing"
"""The value of WHERE that may have no operator: then it means all of them."""
WITH_KEYSET = ("call", "redispatch", "lookup", "boxed", "kernel")


class Opening(NamedTuple):
    """A lookup that begins a call."""

    address: int
    entry: str
    """The register with the OperatorEntry* there."""
    frame: CfaRule
    jumps: bool
    """The function may jump to the kernel, so that the call ends at the function's return address."""


@dataclass(frozen=True)
class BreakSite:
    """An address at which to stop for an operator."""

    address: int
    event: str
    """One of PLACES other than "lookup"."""
    operator: int
    """Address of the OperatorEntry; 0 for any, at "missing"."""
    name: str
    what: str
    """The place in words, for the user."""
    keyset: Value | None = None
    """Where the keyset is; None if there is none."""
    condition: Condition = ALWAYS
    skipped: int | None = None
    """Number of argument registers before those of the operator's arguments; None if these are not in registers."""
    function: tuple[int, int] | None = None
    """The function [start, end) at whose entry the registers hold the arguments, if the site is in the middle of it."""
    frame: CfaRule | None = None
    """At the end of a call: the CFA rule of the frame in which one of ``openings`` has begun it."""
    openings: tuple[Opening, ...] = ()


class OpenCalls:
    """The operator calls that have begun and not ended."""

    def __init__(self) -> None:
        self._operators: dict[tuple[int, int], int] = {}
        """(thread id, CFA of its frame) → OperatorEntry of the call."""

    def begin(self, thread: StoppedThread, frame: CfaRule, operator: int) -> None:
        """Note a call in a frame: its lookup was passed. Raises TargetError."""
        self._operators[thread.tid, cfa_in(thread, frame)] = operator

    def is_open(self, thread: StoppedThread, frame: CfaRule, operator: int) -> bool:
        """True if the frame is inside of a call of the operator. Raises TargetError."""
        return self._operators.get((thread.tid, cfa_in(thread, frame))) == operator

    def end(self, thread: StoppedThread, frame: CfaRule) -> None:
        """Forget the call in the frame, if there is one. Raises TargetError."""
        self._operators.pop((thread.tid, cfa_in(thread, frame)), None)


def cfa_in(thread: StoppedThread, frame: CfaRule) -> int:
    """The CFA of a thread's innermost frame by the rule for its instruction. Raises TargetError."""
    return thread.register(frame.register) + frame.offset


class BreakPlan:
    """Finds the sites of a request in one session."""

    def __init__(self, session: Session, open_calls: OpenCalls) -> None:
        """``open_calls``: the calls that have begun while the process ran."""
        self._session = session
        self._open_calls = open_calls
        self._keys = session.dispatcher.keys
        self._all_calls = AllCalls(session)
        self._functions = self._all_calls.functions
        self._callees: dict[int, frozenset[int]] = {}
        """Address of a function → of those that it calls; cached, since kernels of an operator share functions."""
        self._arguments = [Register(name) for name in session.memory.architecture.argument_registers]

    def missing(self, patterns: Sequence[str]) -> dict[str, UsageError]:
        """Pattern that matches nothing yet → an error that has the closest names."""
        dispatcher, missing = self._session.dispatcher, {}
        for pattern in sorted(patterns, key=is_generated):
            if is_generated(pattern):
                if not generated_functions(self._session, pattern):
                    missing[pattern] = not_loaded(pattern)
            elif not dispatcher.find(pattern):
                missing[pattern] = dispatcher.unknown(pattern)
        return missing

    def not_seen(self, where: str) -> list[str]:
        """A sentence for each library with calls and redispatches that the breakpoints cannot see."""
        if where not in ("call", "redispatch", "lookup"):
            return []
        return [f"{text}: the process does not stop there" for text in self._all_calls.not_seen()]

    def sites(self, request: BreakRequest) -> list[BreakSite]:
        """The distinct sites of a request. Raises UsageError for an unknown key, MemoryFault."""
        check_keys(self._keys, request)
        find, sites = self._session.dispatcher.find, []
        if request.where == MISSING and not request.op:
            return self._missing_sites(0, "any operator")
        named = [pattern for pattern in request.op if not is_generated(pattern)]
        operators = {operator.address: operator for pattern in named for operator in find(pattern)}
        for operator in operators.values():
            for site in self._sites_of(operator, request):
                condition = site.condition
                if site.keyset and request.key and site.event != "kernel":
                    condition = conjunction(condition, key_condition(self._keys, site.keyset, request.key))
                if site.keyset and request.has:
                    bits = self._keys.bits_of(request.has)
                    condition = conjunction(condition, Equals(Bits(site.keyset, bits), bits))
                sites.append(replace(site, condition=condition))
        for pattern in filter(is_generated, request.op):
            for function in generated_functions(self._session, pattern):
                words = function.address, "kernel", 0, function.name, function.what
                sites.append(BreakSite(*words, condition=function.condition))
        return _distinct(sites)

    def _sites_of(self, operator: Operator, request: BreakRequest) -> list[BreakSite]:
        """The sites of one operator, without the conditions on keys."""
        where, owner = request.where, (operator.address, operator.qualified)
        if where in ("call", "redispatch", "lookup"):
            wanted = ("call", "redispatch") if where == "lookup" else (where,)
            functions = self._functions.functions(operator)
            own = self._shared_sites(operator, self._all_calls.own_lookups, wanted)
            if not functions:
                return [*own, *self._shared_sites(operator, self._shared_lookups, wanted)]
            matching = (function for function in functions if function.event in wanted)
            return [*(site for function in matching for site in _lookup_sites(function)), *own]
        if where == "return":
            returns = [
                BreakSite(address, "return", *owner, f"the end of {function.event}")
                for function in self._functions.functions(operator)
                for address in function.sites.returns
            ]
            return [*returns, *self._ends(operator)]
        if where in ("meta", "impl"):
            return self._structured(operator, where)
        if where == MISSING:
            return self._missing_sites(*owner)
        if where == "register":
            address = COMPUTE_ENTRY.address(self._session.symbolizer)
            condition = Equals(self._arguments[0], operator.address)
            what = "computeDispatchTableEntryWithDebug"
            return [BreakSite(address, where, *owner, what, condition=condition)] if address else []
        return self._kernels(operator, where, request.key or "")

    def _missing_sites(self, operator: int, name: str) -> list[BreakSite]:
        """The site where a lookup found no kernel: the entry of ``OperatorEntry::reportError``, whose ``this`` is the
        operator's (ATen/core/dispatch/OperatorEntry.cpp). ``operator``: 0 for any. Raises UsageError in a libtorch
        without that symbol."""
        addresses = (self._session.symbolizer.address_of(name) for name in REPORT_ERROR.examples)
        address = next(filter(None, addresses), 0)
        if not address:
            raise UsageError("this libtorch has no function reportError, where a missing kernel is seen")
        condition = Equals(self._arguments[0], operator) if operator else ALWAYS
        return [BreakSite(address, MISSING, operator, name, "OperatorEntry::reportError", condition=condition)]

    def _shared_sites(
        self, operator: Operator, lookups: Sequence[SharedLookup], wanted: Sequence[str]
    ) -> list[BreakSite]:
        """The sites for one operator at ``lookups`` that all operators share: in ``Dispatcher::callBoxed``, programs
        and extensions. ``wanted``: "call", "redispatch" or both."""
        break_sites = []
        for shared in lookups:
            event, sites = shared.event.replace("Boxed", ""), shared.sites
            if event in wanted:
                words = event, operator.address, operator.qualified, f"its lookup, in {shared.where}"
                condition = Equals(Register(sites.entry), operator.address)
                addresses = (sites.lookup, *(address for address, _ in sites.others))
                break_sites += [BreakSite(address, *words, Register(sites.keyset), condition) for address in addresses]
        return break_sites

    def _ends(self, operator: Operator) -> Iterator[BreakSite]:
        """The sites at the ends of the operator's calls in functions that all operators share: the instructions after
        the kernel's call, if the frame's last lookup was for this operator."""
        functions: dict[int, list[SharedLookup]] = {}
        for shared in (*self._all_calls.own_lookups, *self._shared_lookups):
            functions.setdefault(shared.function.start, []).append(shared)
        for lookups in functions.values():
            ends, jumps = self._all_calls.endings(lookups[0].function)
            openings = tuple(
                Opening(address, sites.entry, frame, jumps)
                for sites in (lookup.sites for lookup in lookups)
                for address, frame in ((sites.lookup, sites.frame), *sites.others)
            )
            what = f"the end of its {lookups[0].event}, in {lookups[0].where}"
            for address, frame in ends:
                yield end_site(self._open_calls, operator.address, operator.qualified, address, what, frame, openings)

    def _structured(self, operator: Operator, where: str) -> list[BreakSite]:
        """The meta or impl functions (``where``) of structured kernels; for an operator without, the kernels that were
        registered for Meta, or for backends."""
        functions = self._functions.structured(operator)
        if functions:
            owner = operator.address, operator.qualified
            return [
                BreakSite(function.start, kind, *owner, function.demangled[0].partition("(")[0])
                for kind, function in functions
                if kind == where
            ]

        def is_wanted(entry: ComputedEntry) -> bool:
            """True if the entry's kernel was registered for Meta, or computes for a backend."""
            if where == "meta":
                return entry.source == "Meta"
            # A kernel that computes: it was registered for a backend, or for all of them, and not for autograd.
            has_backend = self._keys.slots[entry.slot].bits & self._keys.backend_mask
            other = entry.key.startswith("Autograd") or entry.key.endswith("Meta") or entry.source in ("fallback", "")
            return bool(has_backend) and not other

        slots = [entry.slot for entry in self._session.tables.table(operator) if is_wanted(entry)]
        sites = (site for slot in slots for site in self._kernels(operator, "kernel", self._keys.key_of_index(slot)))
        return list({(site.address, site.condition): replace(site, event=where) for site in sites}.values())

    @cached_property
    def _shared_lookups(self) -> list[SharedLookup]:
        return self._all_calls.shared_lookups()

    def _kernels(self, operator: Operator, where: str, key: str) -> list[BreakSite]:
        """The sites of each distinct kernel of the operator's table, or with ``where`` "boxed" of each distinct boxed
        entry. ``key``: only the kernel for this key ("": all)."""
        kernels, sites = self._session.dispatcher.kernels, []
        slots = [self._keys.index_of_key(key)] if key and where == "kernel" else range(self._keys.num_slots)
        for slot in slots:
            kernel = operator.table[slot]
            if not kernel.valid or kernels.fallthrough(kernel) or kernels.ambiguous(kernel):
                continue
            named = kernels.name(kernel, self._keys.key_of_index(slot), operator.name)
            # All Python kernels have the same entry, also those that are registered after this.
            name = named.function if named.kind != "python" else "Python kernels"
            if where == "boxed":
                sites.append(_boxed_site(self._arguments, operator, kernel, name, where))
            else:
                sites += self._entries(operator, kernel, name)
        return _distinct(sites)

    def _entries(self, operator: Operator, kernel: KernelFunction, name: str) -> list[BreakSite]:
        """The sites at which the kernel ``name`` is entered: its unboxed function, and its boxed one unless that calls
        the unboxed one. (Compilers inline the kernel into both, and PyTorch's autograd fallback enters the boxed one.)

        The unboxed function gets functor and keyset, after the pointer to the result if there is one (sret,
        KernelFunction_impl.h). The functor belongs to one registration, so it tells this kernel from others that the
        linker folded into the same code.
        """
        unboxed = kernel.unboxed or kernel.sym_unboxed
        boxed = _boxed_site(self._arguments, operator, kernel, name, "kernel")
        if not unboxed:
            return [boxed]
        first, second, third = self._arguments[:3]
        without_result = Equals(first, kernel.functor)
        site = BreakSite(
            unboxed,
            "kernel",
            operator.address,
            operator.qualified,
            name,
            Choice(without_result, second, third),
            AnyOf((without_result, Equals(second, kernel.functor))),
            2,
        )
        # Without optimization: call, call_functor_with_args_from_stack, the same with an underscore, the kernel
        # (make_boxed_from_unboxed_functor.h).
        if self._reaches(kernel.boxed, unboxed, 4):
            return [site]
        if kernel.functor:  # kernels of other keys may have the same boxed function
            boxed = replace(boxed, condition=conjunction(boxed.condition, Equals(self._arguments[0], kernel.functor)))
        return [replace(site, what=f"{name}, entered unboxed"), boxed]

    def _reaches(self, start: int, target: int, depth: int) -> bool:
        """True if the function at ``start`` calls or jumps to the target, directly or through up to ``depth`` calls."""
        callees = self._callees.get(start)
        if callees is None:
            sites, callees = self._session.dispatch_stacks.sites, frozenset()
            code = sites.function_at(start)
            if code and code.start == start:
                insns = sites.decoded(code).instructions
                targets = {insn.target for insn in insns if insn.kind in ("call", "jmp") and insn.target}
                reached = {follow_stub(self._session.memory, address) for address in targets}
                callees = frozenset(callee for callee in reached if callee and not 0 <= callee - start < code.size)
            self._callees[start] = callees
        return target in callees or (depth > 1 and any(self._reaches(callee, target, depth - 1) for callee in callees))


def _distinct(sites: Iterable[BreakSite]) -> list[BreakSite]:
    """The first site with each address and condition."""
    distinct: dict[tuple[int, Condition], BreakSite] = {}
    for site in sites:
        distinct.setdefault((site.address, site.condition), site)
    return list(distinct.values())


def end_site(
    open_calls: OpenCalls,
    operator: int,
    name: str,
    address: int,
    what: str,
    frame: CfaRule,
    openings: tuple[Opening, ...] = (),
) -> BreakSite:
    """The site at which a call of an operator returns; the parameters are fields of BreakSite. It stops only if
    ``open_calls`` has seen the thread's call of that operator in the same stack frame."""
    is_open = PythonCondition(("end", operator, frame), lambda thread: open_calls.is_open(thread, frame, operator))
    return BreakSite(address, "return", operator, name, what, None, is_open, frame=frame, openings=openings)


def what_is_awaited(request: BreakRequest) -> str:
    """The registration after which there will be a place to stop, in words. Raises UsageError if there is none."""
    if request.where in ("kernel", "boxed", "meta", "impl"):
        key = request.key or {"meta": "Meta", "impl": "a backend"}.get(request.where)
        key = f" for {key}" if key else ""
        return f"a kernel of {', '.join(request.op)}{key} is registered"
    raise UsageError(
        f"nothing to stop at: {', '.join(request.op)} has no {request.where} of its own",
        help="dispatch-break boxed OP or dispatch-break kernel OP work for every operator",
    )


def check_keys(keys: KeyNames | None, request: BreakRequest) -> None:
    """Check the keys of a request. Raises UsageError for an unknown name, and for a place without a keyset. ``keys``:
    None before torch is loaded."""
    for name in (request.key, request.has):
        if name and keys:
            keys.bits_of(name)
    if (request.key or request.has) and request.where not in WITH_KEYSET:
        raise UsageError(f"at {request.where} there is no keyset to test", help=f"use one of: {', '.join(WITH_KEYSET)}")


def key_condition(keys: KeyNames, keyset: Value, key: str) -> Condition:
    """The condition ``highestPriorityTypeId() == key``: it tests the highest functionality bit and, for per-backend
    keys, the highest backend bit. ``keyset``: where the keyset is."""
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
    """The sites at the lookups of an operator's own function."""
    operator, sites, code = function.operator, function.sites, function.function
    what = f"its lookup, in {code.demangled[0].partition('(')[0]}"
    skipped = 0 if function.event == "call" else 1  # redispatch has the keyset first
    extent = (code.start, code.start + code.size)
    words = function.event, operator.address, operator.qualified, what, Register(sites.keyset)
    addresses = [sites.lookup, *(address for address, _ in sites.others)]
    return [BreakSite(address, *words, skipped=skipped, function=extent) for address in addresses]


def _boxed_site(
    arguments: Sequence[Register], operator: Operator, kernel: KernelFunction, name: str, event: str
) -> BreakSite:
    """The site at a kernel's boxed entry, which other operators may share. Its arguments are functor, OperatorHandle&
    and keyset (BoxedKernel.h), in the registers ``arguments``; ``name``: the kernel's."""
    condition = Equals(Pointee(arguments[1]), operator.address)
    what = f"the boxed entry of {name}"
    return BreakSite(kernel.boxed, event, operator.address, operator.qualified, what, arguments[2], condition)
