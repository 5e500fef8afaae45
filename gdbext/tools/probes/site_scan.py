"""Finds in a library the sites at which a probe sees a dispatch, and what the registers hold there.

A direct call of ``OperatorEntry::lookup`` is where a probe is cheap (the kernel emulates it), the arguments are
``this`` and the keyset, and the frame is the dispatch's own. Where the lookup is inlined, a cheap instruction near it
is taken (torch/stack/lookup_sites.py), for a redispatch its entry: there the keyset is the first argument, behind the
pointer for the result if there is one (sret).

The sites of a library are found once and kept in the user's cache folder: to search 280 MB of code takes half a second
of CPU time, in processes of their own.
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
from gdbext.engine.targets.live.supervision import begun_by_child
from gdbext.engine.unwind.frame_steps import cfa_rule_at
from gdbext.errors import BadData, MemoryFault, TargetError
from gdbext.live.all_calls import AllCalls
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
        self.path = module.image.path
        """The library as we have opened it: where it was replaced on disk, or another file is mounted over it, the one
        that the process has mapped."""

    def redispatch(self, operator: Operator, address: int) -> DispatchSite | None:
        """The site of the operator's redispatch at ``address``; None where there is none that is cheap."""
        hidden = hidden_result(operator.results) if operator.results is not None else None
        before = self._architecture.leading_arguments(bool(hidden))
        offset = self._cheap_offset(address - self.module.base, 1 + before)
        if offset is None or hidden is None:
            return None
        keyset = self._architecture.argument_registers[before]
        return DispatchSite(offset, DispatchEvent.REDISPATCH, NOWHERE, keyset, self._architecture.stack_pointer, 0)

    def cheap_place(self, function: TorchSymbol) -> int:
        """The offset in the file of a place in the function where a probe is cheap. Raises TargetError."""
        module, symbol = function.find(self._session.symbolizer) or (None, None)
        is_here = module and module.path == self.module.path
        offset = self._cheap_offset(symbol.vaddr, 0) if symbol and is_here else None
        if offset is None:
            raise TargetError(f"libtorch_cpu.so has no place for a probe in {function.purpose}")
        return offset

    def file_offset(self, address: int) -> int | None:
        """Offset in the library's file of the code at ``address``."""
        return self._image.file_offset(address - self.module.base)

    def _cheap_offset(self, vaddr: int, arguments: int) -> int | None:
        """Offset in the file of a place in the function where a probe is cheap and so many arguments are unchanged."""
        code = self._image.read(vaddr, _PROLOGUE)
        at = self._architecture.probe_offset(code, arguments) if code else None
        return None if at is None else self._image.file_offset(vaddr + at)


_BOXED_POINTER = 8
"""Offset of the boxed function in a KernelFunction (KernelFunction.h): what a boxed call goes through."""
_WORD = 8
COLD = ".cold"
"""The suffix that GCC appends to the name of the part of a function that it puts elsewhere."""


class LibrarySites(NamedTuple):
    """The sites of a library, ascending; ``unseen``: functions that look operators up in a way that is not recognised,
    so that their dispatches are not seen. Torch's own libraries are searched by the names of their functions, others,
    and programs, by their code alone.
    """

    sites: tuple[DispatchSite, ...] = ()
    unseen: int = 0


_CACHE_KIND = "dispatch-sites-6"
"""Part of the name of a cache's file; to be changed whenever the scan finds something else."""


class SiteScanner:
    """Finds the sites of the libraries of one process, in the cache or by a scan."""

    def __init__(self, session: Session, all_calls: AllCalls) -> None:
        self._session = session
        self._functions = all_calls.functions
        self._all_calls = all_calls
        self._architecture = session.memory.architecture
        self._table = OperatorEntry.dispatchTable_.field(session.layout).offset
        probing = self._architecture.probing
        self._registers = tuple(sorted(probing.saved)) if probing else ()
        self._cache = SymbolCache()

    def begin(self, module: Module) -> Callable[[], LibrarySites]:
        """Begin with one library, which a child of ours searches where it is large; a function that gives the result.
        Both raise SymbolFileError."""
        if not module.image:
            return LibrarySites
        name = self._cache_name(module)
        cached = self._load(name) if name else None
        if cached:
            return lambda: cached
        passages: Iterable[tuple[int, int]] = ()
        is_torch, has_code = module.name.startswith("libtorch"), ".text" in module.image.sections
        if is_torch and has_code:
            passages = self._all_calls.passages(module, lambda: {*self._lookups(module), *self._reports(module)})

        def end() -> LibrarySites:
            library = LibrarySites()
            if has_code:
                library = self._sites_of_torch(module, passages) if is_torch else self._sites_of_extension(module)
            if name:
                packed = [site.packed(self._registers) for site in library.sites] + [(library.unseen, 0)]
                values, slots = array("Q", [each[0] for each in packed]), array("I", [each[1] for each in packed])
                values.append(crc32(slots.tobytes(), crc32(values.tobytes())))
                slots.append(0)
                self._cache.store(name, (values, slots))
            return library

        return end

    def cache_by_child(self, modules: Sequence[Module]) -> Iterator[bytes]:
        """Have a child of ours put the sites of some libraries into the cache, from now on. The iterator ends when it
        has done so. Raises SymbolFileError."""

        def fill() -> Iterator[bytes]:
            for module in modules:
                self.begin(module)()
            yield b""

        return begun_by_child(fill, 1) if self._all_calls.may_use_children else iter(())

    def has(self, module: Module) -> bool:
        """The cache has the sites of the library."""
        name = self._cache_name(module)
        return bool(name) and self._load(name) is not None

    def _cache_name(self, module: Module) -> str:
        """The name of its file in the cache, with how a table is recognized in code; "" if nothing is kept of it."""
        key = module.kept_as
        return f"{key}.{self._table:x}-{self._functions.finder.shift}.{_CACHE_KIND}" if key else ""

    def _load(self, name: str) -> LibrarySites | None:
        """None unless every byte is as written: a probe inside of an instruction would ruin the process."""
        arrays = self._cache.load(name)
        if not arrays or len(arrays[0]) != len(arrays[1]) or not len(arrays[0]):
            return None
        values, slots = (
            array(code, [numbers[at] for at in range(len(numbers))]) for code, numbers in zip("QI", arrays)
        )
        checksum = values.pop()
        slots.pop()
        if crc32(slots.tobytes(), crc32(values.tobytes())) != checksum:
            return None
        unseen = values.pop()
        sites = [DispatchSite.unpacked(value, slot, self._registers) for value, slot in zip(values, slots)]
        return LibrarySites(tuple(sites), unseen)

    def _sites_of_torch(self, module: Module, passages: Iterable[tuple[int, int]]) -> LibrarySites:
        """``passages``: see AllCalls.passages()."""
        sites: dict[int, DispatchSite] = {}
        reports = self._reports(module)
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
        ordered = [sites[offset] for offset in sorted(sites)]
        loads = module.image.loads if module.image else ()
        addresses = [
            next(
                module.base + load.vaddr + site.offset - load.offset
                for load in loads
                if load.offset <= site.offset < load.offset + load.filesz
            )
            for site in ordered
        ]
        return LibrarySites(tuple(ordered), self._count_unseen(module, reporting, addresses))

    def _sites_of_extension(self, module: Module) -> LibrarySites:
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

    def _count_unseen(self, module: Module, reporting: Sequence[int], seen: Sequence[int]) -> int:
        """Number of functions that look operators up and have none of the addresses ``seen`` inside. Each copy of the
        lookup calls reportError, at one of ``reporting``, perhaps from the cold part of its function."""
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
        return sum(
            bisect_left(seen, function.start) == bisect_left(seen, function.start + function.size)
            for function in functions.values()
        )

    def _reports(self, module: Module) -> set[int]:
        """Addresses of reportError and of the stubs through which the library calls it."""
        own = (self._session.symbolizer.address_of(name, module.name) for name in REPORT_ERROR.examples)
        stubs = import_stubs(module, self._architecture, REPORT_ERROR.examples)
        return {*stubs, *filter(None, own)}

    def _lookups(self, module: Module) -> set[int]:
        """Addresses of the copies of ``OperatorEntry::lookup`` and of the stubs through which the library calls it."""
        index = self._session.symbolizer.index(module)
        symbols = (symbol for name in LOOKUP.examples for symbol in (index.lookup(name) if index else ()))
        own = {module.base + symbol.vaddr for symbol in symbols if symbol.is_function}
        return {*own, *import_stubs(module, self._architecture, LOOKUP.examples)}

    def _call_site(self, module: Module, address: int, event: DispatchEvent, shared: bool) -> DispatchSite | None:
        """The site of a call of lookup at ``address``, whose caller's frame is the dispatch's; None without a rule."""
        image, (this, keyset) = module.image, self._architecture.argument_registers[:2]
        offset = image.file_offset(module.vaddr(address)) if image else None
        frame = cfa_rule_at(self._architecture, self._functions.finder.tables, address, _WORD)
        if offset is None or not frame:
            return None
        return DispatchSite(offset, event, this, keyset, frame.register, frame.offset - _WORD, shared)

    def _event(self, function: Function) -> tuple[DispatchEvent, bool]:
        """(event, whether no single operator owns the function)."""
        role = classify(function)
        if role.role.opens:
            return DispatchEvent(role.event), role.role is not Role.OPERATOR
        sites = self._lookup_sites(function)
        return self._event_by_calls(function, sites is not None and self._is_boxed(function, sites)), True

    def _event_by_calls(self, function: Function, boxed: bool) -> DispatchEvent:
        """A call asks for the callbacks of profilers, a redispatch does not (Dispatcher.h)."""
        wanted = STEP_CALLBACKS.address(self._session.symbolizer)
        try:
            is_call = wanted in self._functions.calls_of(function)
        except BadData:
            is_call = True
        if is_call:
            return DispatchEvent.CALL_BOXED if boxed else DispatchEvent.CALL
        return DispatchEvent.REDISPATCH_BOXED if boxed else DispatchEvent.REDISPATCH

    def _lookup_sites(self, function: Function) -> LookupSites | None:
        try:
            return self._functions.finder.find(function.start, function.size)
        except (MemoryFault, BadData):
            return None

    def _redispatch_entries(self, seen: Sequence[int]) -> Iterator[DispatchSite]:
        """The entry of each redispatch that has none of the offsets ``seen`` inside: its lookup is inlined."""
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
        """Dispatch site of the function that contains the table access at ``address``; None for redispatch (probed at
        its entry) and functions in ``seen``, which grows."""
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
        address, keyset = self._cheap_place(function, sites)
        image, frame = module.image, sites.frame
        offset = image.file_offset(module.vaddr(address)) if image else None
        if offset is None:
            return None
        return DispatchSite(offset, event, sites.entry, keyset, frame.register, frame.offset - _WORD, shared)

    def _cheap_place(self, function: Function, sites: LookupSites) -> tuple[int, str]:
        """(address, register of the keyset): the conditional jump behind the shift where a copy of the keyset is left.

        The shift itself would be stepped over by the kernel, which costs ten times as much.
        """
        copied, is_behind = "", False
        for insn in self._functions.code(function):
            if is_behind:
                if insn.kind == "jcc" and copied:
                    return insn.address, copied
                break
            if insn.address == sites.lookup:
                is_behind = True
            elif insn.kind == "mov" and insn.destination == sites.keyset and not insn.memory:
                copied = insn.source or ""
            elif copied and (copied in insn.writes or insn.is_call or insn.kind in ("jmp", "jcc")):
                copied = ""
        return sites.lookup, sites.keyset

    def _is_boxed(self, function: Function, sites: LookupSites) -> bool:
        """The kernel is entered through its boxed function: by a call of that word, or of a register that holds it."""
        kernels = [invocation for invocation in sites.invocations if invocation.through == "kernel"]
        if any(kernel.in_memory and kernel.displacement == _BOXED_POINTER for kernel in kernels):
            return True
        if len(kernels) != len(sites.invocations):
            return False
        pointers = {kernel.address: kernel.pointer for kernel in kernels if not kernel.in_memory}
        words = (_BOXED_POINTER, self._table + _BOXED_POINTER)
        loaded: dict[str, Instruction] = {}
        for insn in self._functions.code(function) if pointers else ():
            source = loaded.get(pointers.get(insn.address, ""))
            if source and source.memory and source.memory.displacement in words:
                return True
            loaded.update((register, insn) for register in insn.writes)
        return False
