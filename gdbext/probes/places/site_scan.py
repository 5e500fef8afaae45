"""Finds in a library every place at which an operator is looked up: the direct calls of ``OperatorEntry::lookup``, and
the copies of it that were inlined where no operator is known beforehand.

A direct call is where a probe is cheap (the kernel emulates it), the arguments are ``this`` and the keyset, and the
frame that it stands in is the dispatch's own. Source of the forms: live/hooks/lookup_sites.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gdbext.arch.instruction import Instruction
from gdbext.errors import BadData, MemoryFault
from gdbext.live.hooks.lookup_sites import FUNCTION_LIMIT, LookupSites, frame_at
from gdbext.live.hooks.operator_functions import OperatorFunctions
from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.model.record import Record
from gdbext.probes.places.dispatch_site import NOWHERE, DispatchSite
from gdbext.probes.places.places import ProbePlaces
from gdbext.process.import_stubs import import_stubs
from gdbext.torch.stack.roles import Role, classify
from gdbext.torch.symbols import LOOKUP, OPERATOR_STRUCT, REPORT_ERROR, STEP_CALLBACKS

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.process.modules import Module
    from gdbext.process.symbols import Function

_BOXED_POINTER = 8
"""Offset of the boxed function in a KernelFunction (KernelFunction.h): what a boxed call goes through."""
_WORD = 8
COLD = ".cold"
"""What GCC appends to the name of the part of a function that it puts elsewhere."""
_SHIFT_DISTANCE = 256
"""Bytes before the access to the table in which the shift by num_backends stands."""


class LibrarySites(Record):
    """The places of a library, ascending; ``unseen``: functions that look operators up in a way that is not recognised,
    so that what they dispatch is not seen."""

    sites: tuple[DispatchSite, ...] = ()
    unseen: int = 0


class SiteScanner:
    """Scans the libraries of one process."""

    def __init__(self, session: Session, functions: OperatorFunctions) -> None:
        self._session = session
        self._functions = functions
        self._architecture = session.memory.architecture
        self._table = session.layout.struct("c10::impl::OperatorEntry").field("dispatchTable_").offset

    @property
    def depends_on(self) -> str:
        """What else than the library the places depend on: how a table is recognised in code."""
        return f"{self._table:x}-{self._functions.finder.shift}"

    def scan(self, module: Module) -> LibrarySites:
        """Those of one library. Raises SymbolFileError."""
        image = module.image
        text = image.sections.get(".text") if image is not None else None
        code = image.read(text.address, text.size) if image is not None and text is not None else None
        if text is None or code is None:
            return LibrarySites()
        start = module.base + text.address
        found = {site.offset: site for site in self._calls(module, code, start)}
        found.update((site.offset, site) for site in self._inlined(module, code, start))
        if module.name == OPERATOR_STRUCT.library:
            found.update((site.offset, site) for site in self._entries(sorted(found)))
        sites = [found[offset] for offset in sorted(found)]
        return LibrarySites(tuple(sites), self._unseen(module, code, start, [*map(self._address_in(module), sites)]))

    # --- what is not seen ------------------------------------------------------------------------

    def _unseen(self, module: Module, code: bytes, start: int, seen: Sequence[int]) -> int:
        """How many functions look operators up and have none of these addresses inside. Each copy of the lookup calls
        reportError, perhaps from the cold part of its function."""
        targets = import_stubs(module, self._architecture, REPORT_ERROR.examples)
        for name in REPORT_ERROR.examples:
            own = self._session.symbolizer.address_of(name, module.name)
            targets += [] if own is None else [own]
        functions: dict[int, Function] = {}
        for target in targets:
            for offset in self._architecture.direct_calls(code, target - start):
                function = self._warm_part(module, start + offset)
                if function is not None and classify(function).role is not Role.LOOKUP:
                    functions[function.start] = function
        return sum(
            bisect_left(seen, function.start) == bisect_left(seen, function.start + function.size)
            for function in functions.values()
        )

    def _warm_part(self, module: Module, address: int) -> Function | None:
        symbolizer = self._session.symbolizer
        function = symbolizer.function(address)
        for name in function.names if function is not None else ():
            start = symbolizer.address_of(name[: -len(COLD)], module.name) if name.endswith(COLD) else None
            if start is not None:
                return symbolizer.function(start)
        return function

    @staticmethod
    def _address_in(module: Module) -> Callable[[DispatchSite], int]:
        loads = module.image.loads if module.image is not None else ()

        def address(site: DispatchSite) -> int:
            return next(
                module.base + load.vaddr + site.offset - load.offset
                for load in loads if load.offset <= site.offset < load.offset + load.filesz
            )  # fmt: skip

        return address

    # --- calls of lookup -------------------------------------------------------------------------

    def _calls(self, module: Module, code: bytes, start: int) -> Iterator[DispatchSite]:
        events: dict[int, tuple[DispatchEvent, bool]] = {}
        for lookup in self._lookups(module):
            for offset in self._architecture.direct_calls(code, lookup - start):
                address = start + offset
                function = self._session.symbolizer.function(address)
                if function is None:
                    continue
                event = events.get(function.start)
                if event is None:
                    event = events[function.start] = self._event(function)
                site = self._call_site(module, address, *event)
                if site is not None:
                    yield site

    def _lookups(self, module: Module) -> list[int]:
        index = self._session.symbolizer.index(module)
        symbols = (symbol for name in LOOKUP.examples for symbol in (index.lookup(name) if index is not None else ()))
        own = {module.base + symbol.vaddr for symbol in symbols if symbol.is_function}
        return sorted({*own, *import_stubs(module, self._architecture, LOOKUP.examples)})

    def _call_site(
        self, module: Module, address: int, event: DispatchEvent, shared: bool
    ) -> DispatchSite | None:
        image, (this, keyset) = module.image, self._architecture.argument_registers[:2]
        offset = image.file_offset(module.vaddr(address)) if image is not None else None
        frame = frame_at(self._architecture, self._functions.finder.tables, address, _WORD)
        if offset is None or frame is None:
            return None
        return DispatchSite(offset, event, this, keyset, frame.register, frame.offset - _WORD, shared)

    def _event(self, function: Function) -> tuple[DispatchEvent, bool]:
        """(event, whether no single operator owns the function)."""
        role = classify(function)
        if role.role.opens:
            return DispatchEvent(role.event), role.role is not Role.OPERATOR
        sites = self._sites(function)
        boxed = sites is not None and self._is_boxed(function, sites)
        return self._event_of(function, boxed), True

    def _event_of(self, function: Function, boxed: bool) -> DispatchEvent:
        """A call asks for the callbacks of profilers, a redispatch does not (Dispatcher.h)."""
        wanted = STEP_CALLBACKS.address(self._session.symbolizer)
        try:
            is_call = wanted in self._functions.calls_of(function)
        except BadData:
            is_call = True
        if is_call:
            return DispatchEvent.CALL_BOXED if boxed else DispatchEvent.CALL
        return DispatchEvent.REDISPATCH_BOXED if boxed else DispatchEvent.REDISPATCH

    def _sites(self, function: Function) -> LookupSites | None:
        try:
            return self._functions.finder.find(function.start, function.size)
        except (MemoryFault, BadData):
            return None

    # --- redispatches ----------------------------------------------------------------------------

    def _entries(self, known: Sequence[int]) -> Iterator[DispatchSite]:
        """The entry of each redispatch that has the lookup inlined: the keyset is an argument there."""
        places = ProbePlaces(self._session)
        for operator in self._session.dispatcher.operators():
            for event, address, size in self._functions.extents(operator):
                start = places.file_offset(address)
                if event != "redispatch" or start is None:
                    continue
                if bisect_left(known, start) != bisect_left(known, start + size):
                    continue
                place = places.redispatch(operator, address)
                if place is not None and place.keyset is not None:
                    keyset = self._architecture.argument_registers[place.keyset]
                    top = self._architecture.stack_pointer
                    yield DispatchSite(place.offset, DispatchEvent.REDISPATCH, NOWHERE, keyset, top, 0)

    # --- inlined lookups -------------------------------------------------------------------------

    def _inlined(self, module: Module, code: bytes, start: int) -> Iterator[DispatchSite]:
        """All but those of ``at::_ops::NAME::redispatch``, which are seen at their entry."""
        seen: set[int] = set()
        shift = self._functions.finder.shift
        for offset in self._architecture.table_accesses(code, self._table, shift, _SHIFT_DISTANCE):
            function = self._session.symbolizer.function(start + offset)
            if function is None or function.start in seen:
                continue
            seen.add(function.start)
            role = classify(function)
            if role.role is Role.LOOKUP or (role.role is Role.OPERATOR and role.event == "redispatch"):
                continue
            sites = self._sites(function)
            if sites is None or sites.how != "inlined" or not sites.entry:
                continue
            boxed = self._is_boxed(function, sites)
            event = DispatchEvent(role.event) if role.role.opens else self._event_of(function, boxed)
            site = self._inlined_site(module, function, sites, event, role.role is not Role.OPERATOR)
            if site is not None:
                yield site

    def _inlined_site(
        self, module: Module, function: Function, sites: LookupSites, event: DispatchEvent, shared: bool
    ) -> DispatchSite | None:
        address, keyset = self._cheap_place(function, sites)
        image = module.image
        offset = image.file_offset(module.vaddr(address)) if image is not None else None
        if offset is None:
            return None
        frame = sites.frame
        return DispatchSite(offset, event, sites.entry, keyset, frame.register, frame.offset - _WORD, shared)

    def _cheap_place(self, function: Function, sites: LookupSites) -> tuple[int, str]:
        """(address, register of the keyset): the conditional jump behind the shift where a copy of the keyset is left.

        The shift itself would be stepped over by the kernel, which costs ten times as much.
        """
        copied: str | None = None
        behind: Instruction | None = None
        for one in self._code(function):
            if behind is not None:
                cheap = one.kind == "jcc" and copied is not None
                return (one.address, copied or "") if cheap else (sites.lookup, sites.keyset)
            if one.address == sites.lookup:
                behind = one
            elif one.kind == "mov" and one.destination == sites.keyset and one.memory is None:
                copied = one.source
            elif copied is not None and (copied in one.writes or one.is_call or one.kind in ("jmp", "jcc")):
                copied = None
        return sites.lookup, sites.keyset

    def _is_boxed(self, function: Function, sites: LookupSites) -> bool:
        """The kernel is entered through its boxed function: by a call of that word, or of a register that it is in."""
        kernels = [one for one in sites.invocations if one.through == "kernel"]
        if any(one.in_memory and one.displacement == _BOXED_POINTER for one in kernels):
            return True
        if len(kernels) != len(sites.invocations):
            return False
        pointers = {one.address: one.pointer for one in kernels if not one.in_memory}
        words = (_BOXED_POINTER, self._table + _BOXED_POINTER)
        loaded: dict[str, Instruction] = {}
        for one in self._code(function) if pointers else ():
            source = loaded.get(pointers.get(one.address, ""))
            if source is not None and source.memory is not None and source.memory.displacement in words:
                return True
            loaded.update((register, one) for register in one.writes)
        return False

    def _code(self, function: Function) -> Sequence[Instruction]:
        raw = self._session.memory.try_read(function.start, min(function.size, FUNCTION_LIMIT)) or b""
        return [*self._architecture.decode(raw, function.start)]
