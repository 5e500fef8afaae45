"""Finds in a library every place at which an operator is looked up: the direct calls of ``OperatorEntry::lookup``, and
the copies of it that were inlined where no operator is known beforehand.

A direct call is where a probe is cheap (the kernel emulates it), the arguments are ``this`` and the keyset, and the
frame that it stands in is the dispatch's own. Source of the forms: torch/stack/lookup_sites.py.

A place in a library's code at which a dispatch can be seen by a probe, and what is known there.

libtorch_cpu as a file that probes are placed in, and the place for a redispatch that has the lookup inlined.

The keyset is the first argument of ``at::_ops::NAME::redispatch``, behind a hidden result pointer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.process.code_reader import import_stubs
from gdbext.engine.unwind.frame_steps import frame_at
from gdbext.errors import BadData, MemoryFault, TargetError
from gdbext.live.all_calls import AllCalls
from gdbext.live.operator_functions import OperatorFunctions
from gdbext.torch.assumed_symbols import LOOKUP, OPERATOR_STRUCT, REPORT_ERROR, STEP_CALLBACKS
from gdbext.torch.registry.schema import hidden_result
from gdbext.torch.stack import DispatchEvent
from gdbext.torch.stack.lookup_sites import LookupSites
from gdbext.torch.stack.roles import Role, classify
from gdbext.torch.structures import OperatorEntry

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.modules import Module
    from gdbext.engine.process.symbolizer import Function
    from gdbext.torch.registry import Operator
    from gdbext.torch.torch_symbol import TorchSymbol

EVENTS = tuple(DispatchEvent)
NOWHERE = ""


class DispatchSite(NamedTuple):
    """``offset`` is the place in the file; the registers are those that hold things when it is reached.

    ``entry`` holds the OperatorEntry*, NOWHERE where the place belongs to one operator; ``keyset`` holds the keyset.
    The address of the function's return address is that in ``base`` plus ``slot``. ``shared``: no single operator owns
    the function.
    """

    offset: int
    event: DispatchEvent
    entry: str
    keyset: str
    base: str
    slot: int
    shared: bool = False

    def packed(self, registers: Sequence[str]) -> tuple[int, int]:
        """Two numbers, of 64 and 32 bits, for a file. ``registers``: all that there are, in an order that stays."""
        numbers = [registers.index(name) + 1 if name else 0 for name in (self.entry, self.keyset, self.base)]
        value = self.offset | EVENTS.index(self.event) << 40 | self.shared << 43
        for place, number in enumerate(numbers):
            value |= number << 44 + 6 * place
        return value, self.slot & 0xFFFFFFFF

    @classmethod
    def unpacked(cls, value: int, slot: int, registers: Sequence[str]) -> DispatchSite:
        """The counterpart of packed(). Raises IndexError for damaged numbers."""
        entry, keyset, base = (
            registers[number - 1] if number else NOWHERE
            for number in (value >> 44 + 6 * place & 63 for place in range(3))
        )
        slot -= slot >> 31 << 32
        return cls(value & (1 << 40) - 1, EVENTS[value >> 40 & 3], entry, keyset, base, slot, bool(value >> 43 & 1))


_PROLOGUE = 64
"""Bytes of a function in which the probe's place is looked for."""


class RedispatchPlace(NamedTuple):
    """An operator's redispatch: its address, the probe's offset in the file, the number of the keyset's argument."""

    operator: Operator
    address: int
    offset: int
    keyset: int | None


class ProbePlaces:
    """Finds the places in libtorch_cpu. Raises TargetError, SymbolFileError where the library cannot be used."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._architecture = session.memory.architecture
        module = session.modules.named(OPERATOR_STRUCT.library)
        if not module or not isinstance(module.image, ElfImage):
            raise TargetError(
                "libtorch_cpu.so cannot be probed: its file is not there any more",
                why="kernel probes are placed in the file; it was deleted or replaced after the process loaded it",
                help="trace by breakpoints: dispatch-trace OP --engine breakpoints",
            )
        self.module: Module = module
        self._image = module.image

    @property
    def path(self) -> str:
        """The library as we have opened it: where it was replaced on disk, or another file is mounted over it, the one
        that the process has mapped."""
        return self._image.path

    def redispatch(self, operator: Operator, address: int) -> RedispatchPlace | None:
        """The place of the operator's redispatch at ``address``; None where there is none that is cheap."""
        hidden = hidden_result(operator.results) if operator.results is not None else None
        before = self._architecture.leading_arguments(bool(hidden))
        offset = self._offset(address - self.module.base, 1 + before)
        if offset is None:
            return None
        return RedispatchPlace(operator, address, offset, None if hidden is None else before)

    def cheap_place(self, function: TorchSymbol) -> int:
        """The offset in the file of a place in the function where a probe is cheap. Raises TargetError."""
        found = function.find(self._session.symbolizer)
        offset = self._offset(found[1].vaddr, 0) if found and found[0].path == self.module.path else None
        if offset is None:
            raise TargetError(f"libtorch_cpu.so has no place for a probe in {function.purpose}")
        return offset

    def file_offset(self, address: int) -> int | None:
        """Offset in the library's file of the code at ``address``."""
        return self._image.file_offset(address - self.module.base)

    def _offset(self, vaddr: int, kept: int) -> int | None:
        code = self._image.read(vaddr, _PROLOGUE)
        at = self._architecture.probe_offset(code, kept) if code else None
        return None if at is None else self._image.file_offset(vaddr + at)


_BOXED_POINTER = 8
"""Offset of the boxed function in a KernelFunction (KernelFunction.h): what a boxed call goes through."""
_WORD = 8
_TORCH = "libtorch"
COLD = ".cold"
"""The suffix that GCC appends to the name of the part of a function that it puts elsewhere."""


class LibrarySites(NamedTuple):
    """The places of a library, ascending; ``unseen``: functions that look operators up in a way that is not recognised,
    so that what they dispatch is not seen. Torch's own libraries are gone through by the names of their functions;
    those of others, and programs, by their code alone.
    """

    sites: tuple[DispatchSite, ...] = ()
    unseen: int = 0


class SiteScanner:
    """Scans the libraries of one process."""

    def __init__(self, session: Session, functions: OperatorFunctions) -> None:
        self._session = session
        self._functions = functions
        self._all_calls = AllCalls(session, functions)
        self._architecture = session.memory.architecture
        self._table = OperatorEntry.dispatchTable_.field(session.layout).offset

    @property
    def depends_on(self) -> str:
        """The inputs of the places besides the library: how a table is recognised in code."""
        return f"{self._table:x}-{self._functions.finder.shift}"

    @property
    def may_use_children(self) -> bool:
        """A child of ours can go through a library meanwhile."""
        return self._all_calls.may_use_children

    def begin(self, module: Module) -> Callable[[], LibrarySites]:
        """Begin with one library, which a child of ours goes through where it is large; gives what brings that to its
        end. Both raise SymbolFileError."""
        if not module.image or ".text" not in module.image.sections:
            return LibrarySites
        if not module.name.startswith(_TORCH):
            return lambda: self._of_others(module)
        passages = self._all_calls.passages(module, lambda: {*self._lookups(module), *self._reports(module)})
        return lambda: self._of_torch(module, passages)

    def _of_torch(self, module: Module, passages: Iterable[tuple[int, int]]) -> LibrarySites:
        found: dict[int, DispatchSite] = {}
        reports = self._reports(module)
        reporting, seen_at = [], set[int]()
        events: dict[int, tuple[DispatchEvent, bool]] = {}
        for address, target in passages:
            site = None
            if not target:
                site = self._inlined(module, address, seen_at)
            elif target in reports:
                reporting.append(address)
            else:
                site = self._call(module, address, events)
            if site:
                found[site.offset] = site
        if module.name == OPERATOR_STRUCT.library:
            found.update((site.offset, site) for site in self._entries(sorted(found)))
        sites = [found[offset] for offset in sorted(found)]
        seen = [*map(self._address_in(module), sites)]
        return LibrarySites(tuple(sites), self._unseen(module, reporting, seen))

    def _of_others(self, module: Module) -> LibrarySites:
        """A library or program with a dispatcher of its own, which may have no names."""
        found = {}
        for lookup in self._all_calls.lookups_in(module):
            event, sites = DispatchEvent(lookup.event), lookup.sites
            if sites.how == "call":
                site = self._call_site(module, sites.lookup, event, True)
            else:
                site = self._inlined_site(module, lookup.function, sites, event, True)
            if site:
                found[site.offset] = site
        return LibrarySites(tuple(found[offset] for offset in sorted(found)), len(self._all_calls.not_seen_in(module)))

    # --- what is not seen ------------------------------------------------------------------------

    def _unseen(self, module: Module, reporting: Sequence[int], seen: Sequence[int]) -> int:
        """Number of functions that look operators up and have none of these addresses inside. Each copy of the lookup
        calls reportError, perhaps from the cold part of its function."""
        functions: dict[int, Function] = {}
        for address in reporting:
            function = self._warm_part(module, address)
            if function and classify(function).role is not Role.LOOKUP:
                functions[function.start] = function
        return sum(
            bisect_left(seen, function.start) == bisect_left(seen, function.start + function.size)
            for function in functions.values()
        )

    def _reports(self, module: Module) -> set[int]:
        own = (self._session.symbolizer.address_of(name, module.name) for name in REPORT_ERROR.examples)
        stubs = import_stubs(module, self._architecture, REPORT_ERROR.examples)
        return {*stubs, *filter(None, own)}

    def _warm_part(self, module: Module, address: int) -> Function | None:
        symbolizer = self._session.symbolizer
        function = symbolizer.function(address)
        for name in function.names if function else ():
            start = symbolizer.address_of(name[: -len(COLD)], module.name) if name.endswith(COLD) else 0
            if start:
                return symbolizer.function(start)
        return function

    @staticmethod
    def _address_in(module: Module) -> Callable[[DispatchSite], int]:
        loads = module.image.loads if module.image else ()

        def address(site: DispatchSite) -> int:
            return next(
                module.base + load.vaddr + site.offset - load.offset
                for load in loads
                if load.offset <= site.offset < load.offset + load.filesz
            )

        return address

    # --- calls of lookup -------------------------------------------------------------------------

    def _call(self, module: Module, address: int, events: dict[int, tuple[DispatchEvent, bool]]) -> DispatchSite | None:
        """``events``: what is known of functions by their address; grows."""
        function = self._session.symbolizer.function(address)
        if not function:
            return None
        event = events.get(function.start)
        if not event:
            event = events[function.start] = self._event(function)
        return self._call_site(module, address, *event)

    def _lookups(self, module: Module) -> set[int]:
        index = self._session.symbolizer.index(module)
        symbols = (symbol for name in LOOKUP.examples for symbol in (index.lookup(name) if index else ()))
        own = {module.base + symbol.vaddr for symbol in symbols if symbol.is_function}
        return {*own, *import_stubs(module, self._architecture, LOOKUP.examples)}

    def _call_site(self, module: Module, address: int, event: DispatchEvent, shared: bool) -> DispatchSite | None:
        image, (this, keyset) = module.image, self._architecture.argument_registers[:2]
        offset = image.file_offset(module.vaddr(address)) if image else None
        frame = frame_at(self._architecture, self._functions.finder.tables, address, _WORD)
        if offset is None or not frame:
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
                if place and place.keyset is not None:
                    keyset = self._architecture.argument_registers[place.keyset]
                    top = self._architecture.stack_pointer
                    yield DispatchSite(place.offset, DispatchEvent.REDISPATCH, NOWHERE, keyset, top, 0)

    # --- inlined lookups -------------------------------------------------------------------------

    def _inlined(self, module: Module, address: int, seen: set[int]) -> DispatchSite | None:
        """That of the function around a table access, unless it is ``at::_ops::NAME::redispatch``, which is seen at its
        entry. ``seen``: functions that need not be looked at again; grows."""
        function = self._session.symbolizer.function(address)
        if not function or function.start in seen:
            return None
        seen.add(function.start)
        role = classify(function)
        if role.role is Role.LOOKUP or (role.role is Role.OPERATOR and role.event == "redispatch"):
            return None
        sites = self._sites(function)
        if not sites or sites.how != "inlined" or not sites.entry:
            return None
        boxed = self._is_boxed(function, sites)
        event = DispatchEvent(role.event) if role.role.opens else self._event_of(function, boxed)
        return self._inlined_site(module, function, sites, event, role.role is not Role.OPERATOR)

    def _inlined_site(
        self, module: Module, function: Function, sites: LookupSites, event: DispatchEvent, shared: bool
    ) -> DispatchSite | None:
        address, keyset = self._cheap_place(function, sites)
        image = module.image
        offset = image.file_offset(module.vaddr(address)) if image else None
        if offset is None:
            return None
        frame = sites.frame
        return DispatchSite(offset, event, sites.entry, keyset, frame.register, frame.offset - _WORD, shared)

    def _cheap_place(self, function: Function, sites: LookupSites) -> tuple[int, str]:
        """(address, register of the keyset): the conditional jump behind the shift where a copy of the keyset is left.

        The shift itself would be stepped over by the kernel, which costs ten times as much.
        """
        copied = ""
        behind: Instruction | None = None
        for one in self._functions.code(function):
            if behind:
                cheap = one.kind == "jcc" and copied
                return (one.address, copied) if cheap else (sites.lookup, sites.keyset)
            if one.address == sites.lookup:
                behind = one
            elif one.kind == "mov" and one.destination == sites.keyset and not one.memory:
                copied = one.source or ""
            elif copied and (copied in one.writes or one.is_call or one.kind in ("jmp", "jcc")):
                copied = ""
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
        for one in self._functions.code(function) if pointers else ():
            source = loaded.get(pointers.get(one.address, ""))
            if source and source.memory and source.memory.displacement in words:
                return True
            loaded.update((register, one) for register in one.writes)
        return False
