"""Finds in a library the sites at which a probe sees a dispatch, and what the registers hold there.

The best site is a direct call of ``OperatorEntry::lookup``: a probe is cheap there (the kernel emulates calls), and the
arguments are ``this`` and the keyset. If the lookup is inlined, the site is a cheap instruction near it
(torch/stack/lookup_sites.py); for a redispatch, it is the function's entry. Sites are cached by library, because
searching 280 MB of code takes half a second of CPU time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.process.code_reader import import_stubs
from gdbext.engine.targets.live.supervision import stream_from_child
from gdbext.engine.unwind.frame_steps import cfa_rule_at
from gdbext.errors import BadData, MemoryFault, TargetError
from gdbext.live.dispatch_places import AllCalls
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
SLOT_BITS = 20
NOWHERE = ""
"""In place of a register's name: no register has the value."""


class DispatchSite(NamedTuple):
    """An instruction at which a probe sees a dispatch, and the registers that hold values there."""

    offset: int
    """The file offset."""
    event: DispatchEvent
    entry: str
    """The register with the OperatorEntry*; NOWHERE if the site belongs to one operator."""
    keyset: str
    """The register with the keyset."""
    base: str
    """The register with a stack address, ``slot`` bytes below the function's return address."""
    slot: int
    shared: bool = False
    """No single operator owns the function."""
    constant: int = 0
    """The keyset if ``keyset`` is NOWHERE: at most two bits."""

    @property
    def slot_and_constant(self) -> int:
        """32 bits: ``slot`` in 20, and the numbers of the constant's bits in two times six; 0 without one."""
        low, high = self.constant & -self.constant, self.constant.bit_length()
        bits = low.bit_length() - 1 | high - 1 << 6 if self.constant else 0
        return self.slot & (1 << SLOT_BITS) - 1 | bits << SLOT_BITS

    def packed(self, registers: Sequence[str]) -> tuple[int, int]:
        """Two numbers, of 64 and 32 bits, for a file. ``registers``: all of the architecture, in a fixed order."""
        value = self.offset | EVENTS.index(self.event) << 40 | self.shared << 43
        for position, name in enumerate((self.entry, self.keyset, self.base)):
            value |= (registers.index(name) + 1 if name else 0) << 44 + 6 * position
        return value, self.slot_and_constant

    @classmethod
    def unpacked(cls, value: int, slot: int, registers: Sequence[str]) -> DispatchSite:
        """The counterpart of packed(). Raises IndexError for damaged numbers."""
        entry, keyset, base = (
            registers[number - 1] if number else NOWHERE
            for number in (value >> 44 + 6 * position & 63 for position in range(3))
        )
        bits, slot = slot >> SLOT_BITS, slot & (1 << SLOT_BITS) - 1
        slot -= slot >> SLOT_BITS - 1 << SLOT_BITS
        constant = 1 << (bits & 63) | 1 << (bits >> 6) if bits else 0
        event = EVENTS[value >> 40 & 3]
        return cls(value & (1 << 40) - 1, event, entry, keyset, base, slot, bool(value >> 43 & 1), constant)


class ProbePlaces:
    """Finds places for probes in libtorch_cpu."""

    def __init__(self, session: Session) -> None:
        """Raises TargetError, SymbolFileError if the library cannot be used."""
        self._session = session
        self._architecture = session.memory.architecture
        module = session.modules.named(OPERATOR_STRUCT.library)
        if not module or not isinstance(module.image, ElfImage):
            raise TargetError(
                "libtorch_cpu.so cannot be probed: its file no longer exists",
                why="kernel probes are placed in the file; it was deleted or replaced after the process loaded it",
                help="trace by breakpoints: dispatch-trace OP --engine breakpoints",
            )
        self.module: Module = module
        self._image = module.image
        self.path = module.image.path
        """The library as we have opened it: the file that the process has mapped, even if it was replaced on disk."""

    def redispatch(self, operator: Operator, address: int) -> DispatchSite | None:
        """The site at the entry of the operator's redispatch function, which starts at ``address``; None if it has no
        cheap instruction there. The keyset is the first argument, after the pointer to the result if there is one."""
        uses_sret = hidden_result(operator.results) if operator.results is not None else None
        leading = self._architecture.leading_arguments(bool(uses_sret))
        offset = self._cheap_offset(address - self.module.base, 1 + leading)
        if offset is None or uses_sret is None:
            return None
        keyset = self._architecture.argument_registers[leading]
        return DispatchSite(offset, DispatchEvent.REDISPATCH, NOWHERE, keyset, self._architecture.stack_pointer, 0)

    def cheap_place(self, function: TorchSymbol) -> int:
        """File offset in the function at which a probe is cheap. Raises TargetError."""
        module, symbol = function.find(self._session.symbolizer) or (None, None)
        is_in_library = module and module.path == self.module.path
        offset = self._cheap_offset(symbol.vaddr, 0) if symbol and is_in_library else None
        if offset is None:
            raise TargetError(f"libtorch_cpu.so has no place for a probe in {function.purpose}")
        return offset

    def file_offset(self, address: int) -> int | None:
        """Offset in the library's file of the code at ``address``."""
        return self._image.file_offset(address - self.module.base)

    def _cheap_offset(self, vaddr: int, arguments: int) -> int | None:
        """File offset in the function's first 64 bytes at which a probe is cheap and the first ``arguments`` argument
        registers are unchanged."""
        code = self._image.read(vaddr, 64)
        offset = self._architecture.probe_offset(code, arguments) if code else None
        return None if offset is None else self._image.file_offset(vaddr + offset)


_BOXED_POINTER = 8
"""Offset of the boxed function in a KernelFunction (KernelFunction.h)."""
_WORD = 8
COLD = ".cold"
"""The suffix that GCC appends to the name of the part of a function that it puts elsewhere."""


class LibrarySites(NamedTuple):
    """The sites of a library."""

    sites: tuple[DispatchSite, ...] = ()
    """Ordered by offset."""
    unseen: tuple[int, ...] = ()
    """File offsets of the functions that look operators up in an unrecognized way, so that their dispatches are not
    seen."""


def address_at(module: Module, offset: int) -> int | None:
    """The address of the byte at a file offset of a library; None if it is not mapped."""
    for load in module.image.loads if module.image else ():
        if load.offset <= offset < load.offset + load.filesz:
            return module.base + load.vaddr + offset - load.offset
    return None


class SiteScanner:
    """Finds the sites of the libraries of one process, in the cache or by a scan. Torch's own libraries are searched by
    the names of their functions, others, and programs, by their code alone."""

    def __init__(self, session: Session, all_calls: AllCalls) -> None:
        """``all_calls``: the finder of lookups in the same session."""
        self._session = session
        self._functions = all_calls.functions
        self._all_calls = all_calls
        self._architecture = session.memory.architecture
        self._table = OperatorEntry.dispatchTable_.field(session.layout).offset
        probing = self._architecture.probing
        self._registers = tuple(sorted(probing.saved)) if probing else ()
        self._cache = SymbolCache()

    def begin(self, module: Module) -> Callable[[], LibrarySites]:
        """Start to search one library, with child processes if it is large, and return a function that waits for the
        result. Both raise SymbolFileError."""
        if not module.image:
            return LibrarySites
        name = self._cache_name(module)
        cached = self._load(name) if name else None
        if cached:
            return lambda: cached
        passages: Iterable[tuple[int, int]] = ()
        is_torch, has_code = module.name.startswith("libtorch"), ".text" in module.image.sections
        if is_torch and has_code:
            passages = self._all_calls.passages(
                module, lambda: {*self._lookup_functions(module), *self._report_functions(module)}
            )

        def finish() -> LibrarySites:
            """Wait for the passages, turn them into sites, and cache these."""
            library = LibrarySites()
            if has_code:
                library = self._sites_of_torch(module, passages) if is_torch else self._sites_of_extension(module)
            if name:
                packed = [site.packed(self._registers) for site in library.sites]
                packed += [*((offset, 0) for offset in library.unseen), (len(library.unseen), 0)]
                values, slots = array("Q", [value for value, _ in packed]), array("I", [slot for _, slot in packed])
                values.append(crc32(slots.tobytes(), crc32(values.tobytes())))
                slots.append(0)
                self._cache.store(name, (values, slots))
            return library

        return finish

    def cache_by_child(self, modules: Sequence[Module]) -> Iterator[bytes]:
        """Start a child process that puts the sites of these libraries into the cache; the iterator ends when it has
        done so. Raises SymbolFileError."""

        def fill() -> Iterator[bytes]:
            for module in modules:
                self.begin(module)()
            yield b""

        return stream_from_child(fill, 1) if self._all_calls.may_use_children else iter(())

    def is_cached(self, module: Module) -> bool:
        name = self._cache_name(module)
        return bool(name) and self._load(name) is not None

    def _cache_name(self, module: Module) -> str:
        """The name of the library's file in the cache, "" if it cannot be cached. It includes what the scan depends on;
        the number after "sites" must change whenever the scan finds something else."""
        key = module.kept_as
        return f"{key}.{self._table:x}-{self._functions.finder.shift}.dispatch-sites-9" if key else ""

    def _load(self, name: str) -> LibrarySites | None:
        """None unless every byte is as written: a probe inside of an instruction would ruin the process."""
        arrays = self._cache.load(name)
        if not arrays or len(arrays[0]) != len(arrays[1]) or not len(arrays[0]):
            return None
        values, slots = (
            array(code, [numbers[index] for index in range(len(numbers))]) for code, numbers in zip("QI", arrays)
        )
        checksum = values.pop()
        slots.pop()
        if crc32(slots.tobytes(), crc32(values.tobytes())) != checksum:
            return None
        sites = len(values) - 1 - values.pop()
        unpacked = (DispatchSite.unpacked(value, slot, self._registers) for value, slot in zip(values[:sites], slots))
        return LibrarySites(tuple(unpacked), tuple(values[sites:]))

    def _sites_of_torch(self, module: Module, passages: Iterable[tuple[int, int]]) -> LibrarySites:
        """The sites of a library of torch, by the names of its functions. ``passages``: (address, target) of each call
        of lookup or reportError, and (address, 0) of each access to an operator's table."""
        sites: dict[int, DispatchSite] = {}
        reports = self._report_functions(module)
        reporting, seen_functions = [], set[int]()
        events: dict[int, tuple[DispatchEvent, bool]] = {}
        for address, target in passages:
            site = None
            if not target:
                site = self._inlined_lookup_site(module, address, seen_functions)
            elif target in reports:
                reporting.append(address)
            elif function := self._session.symbolizer.function(address):
                if function.start not in events:
                    events[function.start] = self._event(function)
                site = self._call_site(module, address, *events[function.start])
            if site:
                sites[site.offset] = site
        if module.name == OPERATOR_STRUCT.library:
            sites.update((site.offset, site) for site in self._redispatch_entries(sorted(sites)))
        addresses = [address_at(module, offset) or 0 for offset in sorted(sites)]
        unseen = []
        for function in self._unseen_functions(module, reporting, addresses):
            more = list(self._all_sites(module, function))
            sites.update((site.offset, site) for site in more)
            start = module.image.file_offset(module.vaddr(function.start)) if module.image and not more else None
            unseen += [start] if start is not None else []
        return LibrarySites(tuple(sites[offset] for offset in sorted(sites)), tuple(unseen))

    def _all_sites(self, module: Module, function: Function) -> Iterator[DispatchSite]:
        """The sites in a function that belongs to no operator, and may dispatch several."""
        finder = self._functions.finder
        try:
            lookups = [*finder.all_lookups(function), *finder.late_lookups(function)]
        except MemoryFault:
            return
        for sites, event in lookups:
            site = self._inlined_site(module, function, sites, DispatchEvent(event), True)
            if site:
                yield site

    def _sites_of_extension(self, module: Module) -> LibrarySites:
        """The sites of a library or program with a dispatcher of its own, whose functions may have no names."""
        by_offset = {}
        for lookup in self._all_calls.lookups_in(module):
            event, code_sites = DispatchEvent(lookup.event), lookup.sites
            if code_sites.how == "call":
                site = self._call_site(module, code_sites.lookup, event, shared=True)
            else:
                site = self._inlined_site(module, lookup.function, code_sites, event, shared=True)
            if site:
                by_offset[site.offset] = site
        unseen = []
        for start in sorted(self._all_calls.not_seen_in(module)):
            function = self._session.dispatch_stacks.sites.function_at(start)
            more = list(self._all_sites(module, function)) if function else []
            by_offset.update((site.offset, site) for site in more)
            offset = module.image.file_offset(module.vaddr(start)) if module.image and not more else None
            unseen += [offset] if offset is not None else []
        return LibrarySites(tuple(by_offset[offset] for offset in sorted(by_offset)), tuple(unseen))

    def _unseen_functions(self, module: Module, reporting: Sequence[int], seen: Sequence[int]) -> Sequence[Function]:
        """The functions that look operators up and contain no site. Each copy of the lookup calls reportError, maybe in
        the cold part of its function. ``reporting``: addresses of these calls; ``seen``: of the sites, ascending."""
        symbolizer = self._session.symbolizer
        functions: dict[int, Function] = {}
        for address in reporting:
            function = symbolizer.function(address)
            for name in function.names if function else ():
                start = symbolizer.address_of(name[: -len(COLD)], module.name) if name.endswith(COLD) else 0
                if start:
                    function = symbolizer.function(start)
                    break
            if function and classify(function).role is not Role.LOOKUP:
                functions[function.start] = function
        return [
            function
            for start, function in sorted(functions.items())
            if bisect_left(seen, start) == bisect_left(seen, start + function.size)
        ]

    def _report_functions(self, module: Module) -> set[int]:
        """Addresses of reportError and of the stubs through which the library calls it."""
        own = (self._session.symbolizer.address_of(name, module.name) for name in REPORT_ERROR.examples)
        stubs = import_stubs(module, self._architecture, REPORT_ERROR.examples)
        return {*stubs, *filter(None, own)}

    def _lookup_functions(self, module: Module) -> set[int]:
        """Addresses of the copies of ``OperatorEntry::lookup`` and of the stubs through which the library calls it."""
        index = self._session.symbolizer.index(module)
        symbols = (symbol for name in LOOKUP.examples for symbol in (index.lookup(name) if index else ()))
        own = {module.base + symbol.vaddr for symbol in symbols if symbol.is_function}
        return {*own, *import_stubs(module, self._architecture, LOOKUP.examples)}

    def _call_site(self, module: Module, address: int, event: DispatchEvent, shared: bool) -> DispatchSite | None:
        """The site of a call of lookup at ``address``; None if the CFA of the calling frame is unknown. ``shared``: no
        single operator owns the caller."""
        image, (this, keyset) = module.image, self._architecture.argument_registers[:2]
        offset = image.file_offset(module.vaddr(address)) if image else None
        frame = cfa_rule_at(self._architecture, self._functions.finder.tables, address, _WORD)
        if offset is None or not frame:
            return None
        return DispatchSite(offset, event, this, keyset, frame.register, frame.offset - _WORD, shared)

    def _event(self, function: Function) -> tuple[DispatchEvent, bool]:
        """(event of the dispatch by a function, True if no single operator owns the function)."""
        role = classify(function)
        if role.role.opens:
            return DispatchEvent(role.event), role.role is not Role.OPERATOR
        sites = self._lookup_sites(function)
        return self._event_by_calls(function, sites is not None and self._is_boxed(function, sites)), True

    def _event_by_calls(self, function: Function, boxed: bool) -> DispatchEvent:
        """The event of a function whose name does not tell: only calls ask for profilers' callbacks (Dispatcher.h)."""
        try:
            is_call = STEP_CALLBACKS.address(self._session.symbolizer) in self._functions.calls_of(function)
        except BadData:
            is_call = True
        if is_call:
            return DispatchEvent.CALL_BOXED if boxed else DispatchEvent.CALL
        return DispatchEvent.REDISPATCH_BOXED if boxed else DispatchEvent.REDISPATCH

    def _lookup_sites(self, function: Function) -> LookupSites | None:
        """The lookup in a function; None if there is none, or its code cannot be read."""
        try:
            return self._functions.finder.find(function.start, function.size)
        except (MemoryFault, BadData):
            return None

    def _redispatch_entries(self, seen: Sequence[int]) -> Iterator[DispatchSite]:
        """Sites at the entries of redispatch functions whose lookup is inlined: those that contain none of the file
        offsets ``seen`` (ascending)."""
        places = ProbePlaces(self._session)
        for operator in self._session.dispatcher.operators():
            for event, address, size in self._functions.extents(operator):
                start = places.file_offset(address)
                if event != "redispatch" or start is None:
                    continue
                is_seen = bisect_left(seen, start) != bisect_left(seen, start + size)
                if not is_seen and (site := places.redispatch(operator, address)):
                    yield site

    def _inlined_lookup_site(self, module: Module, address: int, seen: set[int]) -> DispatchSite | None:
        """The site in the function that contains the table access at ``address``; None for redispatch (probed at its
        entry) and for functions whose start is in ``seen``, to which this one is added."""
        function = self._session.symbolizer.function(address)
        if not function or function.start in seen:
            return None
        seen.add(function.start)
        role = classify(function)
        if role.role is Role.LOOKUP or (role.role is Role.OPERATOR and role.event == "redispatch"):
            return None
        sites = self._lookup_sites(function)
        if not sites or sites.how != "inlined" or not sites.entry:
            return None
        boxed = self._is_boxed(function, sites)
        event = DispatchEvent(role.event) if role.role.opens else self._event_by_calls(function, boxed)
        return self._inlined_site(module, function, sites, event, role.role is not Role.OPERATOR)

    def _inlined_site(
        self, module: Module, function: Function, sites: LookupSites, event: DispatchEvent, shared: bool
    ) -> DispatchSite | None:
        """The site of an inlined lookup; None if it is in no file. ``shared``: no single operator owns the function."""
        address, keyset = sites.lookup, sites.keyset
        if not sites.constant and self._is_shift(function, sites):
            address, keyset = self._cheap_place(function, sites)
        image, frame = module.image, sites.frame
        offset, slot = image.file_offset(module.vaddr(address)) if image else None, frame.offset - _WORD
        if offset is None or abs(slot) >> SLOT_BITS - 1:
            return None
        return DispatchSite(offset, event, sites.entry, keyset, frame.register, slot, shared, sites.constant)

    def _is_shift(self, function: Function, sites: LookupSites) -> bool:
        """True if the site is the shift of the keyset, not an access to the table, where another register has it."""
        code = self._functions.code(function)
        return any(insn.address == sites.lookup and insn.destination == sites.keyset for insn in code)

    def _cheap_place(self, function: Function, sites: LookupSites) -> tuple[int, str]:
        """(address of a probe, register of the keyset): the conditional jump after the shift if a register still holds
        a copy of the keyset there, else the shift, which the kernel steps over at ten times the cost."""
        copy_register, is_after_shift = "", False
        for insn in self._functions.code(function):
            if is_after_shift:
                if insn.kind == "jcc" and copy_register:
                    return insn.address, copy_register
                break
            if insn.address == sites.lookup:
                is_after_shift = True
            elif insn.kind == "mov" and insn.destination == sites.keyset and not insn.memory:
                copy_register = insn.source or ""
            elif copy_register and (copy_register in insn.writes or insn.is_call or insn.kind in ("jmp", "jcc")):
                copy_register = ""
        return sites.lookup, sites.keyset

    def _is_boxed(self, function: Function, sites: LookupSites) -> bool:
        """True if the function enters the kernel through its boxed function: by a call of that word in memory, or of a
        register that holds it."""
        kernels = [invocation for invocation in sites.invocations if invocation.through == "kernel"]
        if any(kernel.in_memory and kernel.displacement == _BOXED_POINTER for kernel in kernels):
            return True
        if len(kernels) != len(sites.invocations):
            return False
        pointers = {kernel.address: kernel.pointer for kernel in kernels if not kernel.in_memory}
        words = (_BOXED_POINTER, self._table + _BOXED_POINTER)
        loaded: dict[str, Instruction] = {}
        if not pointers:
            return False
        for insn in self._functions.code(function):
            source = loaded.get(pointers.get(insn.address, ""))
            if source and source.memory and source.memory.displacement in words:
                return True
            loaded.update((register, insn) for register in insn.writes)
        return False
