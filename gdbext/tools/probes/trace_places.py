"""The places of a trace: those of the operators that are wanted, and those that all operators share.

The places of libraries that a process loads while its dispatches are counted or traced.

Where the functions return that have a lookup inside: their ``ret`` instructions.

The places of a library, found once and kept in the user's cache folder: looking through 280 MB of code takes half a
second of processor time, in processes of their own.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.targets.live.supervision import begun_by_child
from gdbext.live.all_calls import AllCalls
from gdbext.live.operator_functions import OperatorFunctions
from gdbext.tools.probes.bpf.bpf_kernel import ProbePlace
from gdbext.tools.probes.bpf.place_program import TracePlace
from gdbext.tools.probes.site_scan import COLD, DispatchSite, LibrarySites, ProbePlaces, SiteScanner
from gdbext.torch.assumed_symbols import OPERATOR_STRUCT
from gdbext.torch.registry.kernel import plain_name

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.modules import Module
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.torch.registry import Operator


class TracePlaces:
    """Finds them for one session. Raises TargetError, SymbolFileError where libtorch cannot be used."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._functions = OperatorFunctions(session)
        self._store = SiteStore(session, SiteScanner(session, self._functions))
        self._entries = ProbePlaces(session)
        self._found: dict[int, LibrarySites] = {}
        """Those of other libraries than libtorch_cpu, by their first address."""
        self.unseen: Counter[str] = Counter()
        """Functions whose dispatches no place sees, by the library that they are in, of those gone through so far."""

    def everything(self) -> list[TracePlace]:
        """All places: every dispatch of every operator."""
        operators = self._session.dispatcher.operators()
        return [*self._of_operators(operators), *(TracePlace(path, site) for path, site in self._shared())]

    def of(self, operators: Collection[Operator]) -> list[TracePlace]:
        """The operators' own places, and the shared ones, filtered."""
        shared = (TracePlace(path, site, filtered=True) for path, site in self._shared())
        return [*self._of_operators(operators), *shared]

    def of_libraries(self, paths: Collection[str], filtered: bool) -> list[TracePlace]:
        """Those in these libraries alone, which all operators share."""
        return [TracePlace(path, site, filtered=filtered) for path, site in self._shared(paths)]

    def begin(self) -> None:
        """Start children of ours that go through the libraries, while the caller reads something else."""
        self._begun  # noqa: B018

    @cached_property
    def _begun(self) -> tuple[Callable[[], LibrarySites], Iterator[bytes]]:
        """A function that gives the places of libtorch_cpu, and an iterator that ends when those of the other libraries
        are kept; children go through both."""
        module = self._entries.module
        kept: Iterator[bytes] = iter(())
        if not self._store.has(module):
            others = AllCalls(self._session, self._functions).modules()
            kept = self._store.keep_by_child([each for each in others if each.name != OPERATOR_STRUCT.library])
        return self._store.begin(module), kept

    @cached_property
    def _torch(self) -> LibrarySites:
        """Those of libtorch_cpu. While children go through the libraries, names of operators are read."""
        finish, kept = self._begun
        self._functions.read_names()
        found = finish()
        deque(kept, 0)
        return found

    def _sites_of(self, module: Module) -> LibrarySites:
        if module.start not in self._found:
            self._found[module.start] = self._store.begin(module)()
        return self._found[module.start]

    def _shared(self, only: Collection[str] = ()) -> Iterator[tuple[str, DispatchSite]]:
        calls = AllCalls(self._session, self._functions)
        for module in calls.modules(only):
            path = module.image.path if module.image else module.path
            is_torch = module.name == OPERATOR_STRUCT.library
            found = self._torch if is_torch else self._sites_of(module)
            is_own = found.unseen and not module.name.startswith("libtorch")
            names = named(self._session.symbolizer, calls.not_seen_in(module)) if is_own else ""
            self.unseen[f"{module.name}: {names}" if names else module.name] += found.unseen
            yield from ((path, site) for site in found.sites if site.shared)

    def _of_operators(self, operators: Collection[Operator]) -> Iterator[TracePlace]:
        """Those in the operator's own functions."""
        path, sites = self._entries.path, self._torch.sites
        offsets = [site.offset for site in sites]
        for operator in operators:
            for _, address, size in self._functions.extents(operator):
                start = self._entries.file_offset(address)
                if start is None:
                    continue
                inside = sites[bisect_left(offsets, start) : bisect_left(offsets, start + size)]
                yield from (TracePlace(path, site, operator.address) for site in inside)


_NAMED = 3
"""Functions of a library that are not seen and named."""


def named(symbolizer: Symbolizer, starts: Collection[int]) -> str:
    """The first of the functions that start there by their names: ``mine::f, mine::g, …``."""
    functions = (symbolizer.function(start) for start in sorted(starts))
    names = [plain_name(function.demangled[0]) for function in functions if function]
    return ", ".join([*names[:_NAMED], *(["…"] if len(names) > _NAMED else [])])


def unseen_in(unseen: Counter[str]) -> tuple[str, ...]:
    """``7 in libtorch_cpu.so``, ``1 in ops.so: mine::f`` for each library that has some."""
    return tuple(f"{count} in {name}" for name, count in sorted(unseen.items()) if count)


_TRIES = 3
"""Times that libraries are tried which cannot be read (yet)."""


class LatePlaces:
    """Compares what is mapped now with what was mapped before. ``session`` is one in which the libraries of the places
    that were found last are known."""

    def __init__(self, session: Session, filtered: bool) -> None:
        """``filtered``: other operators pass the places, too. Raises TargetGone."""
        self.session = session
        self._filtered = filtered
        self.unseen: Counter[str] = Counter()
        """Functions in them whose dispatches no place sees, by library."""
        self._known = self._libraries()
        self._tries = 0

    def found(self) -> Sequence[TracePlace]:
        """Those of libraries that were loaded since the last time. Raises GdbextError."""
        mapped = self._libraries()
        new = mapped - self._known
        self._tries = self._tries + 1 if new else 0
        found = self._places_in(new) if 0 < self._tries <= _TRIES else ()
        self._known, self._tries = mapped, 0
        return found

    def _places_in(self, libraries: Collection[str]) -> Sequence[TracePlace]:
        self.session = self.session.reopened(self.session.target)
        finder = TracePlaces(self.session)
        found = finder.of_libraries(libraries, self._filtered)
        self.unseen += finder.unseen
        return found

    def _libraries(self) -> frozenset[str]:
        maps = self.session.target.memory.maps()
        return frozenset(each.path for each in maps if "x" in each.permissions and each.path.startswith("/"))


def return_places(session: Session, places: Sequence[TracePlace]) -> dict[str, list[ProbePlace]]:
    """The returns of the functions that these places are in, for each file. A function that leaves by a jump only has
    none."""
    functions = OperatorFunctions(session)
    where = addresses(session, places)
    offsets: dict[str, dict[int, ProbePlace]] = {}
    seen: set[int] = set()
    for number, place in enumerate(places):
        function = session.symbolizer.function(where[number]) if number in where else None
        if not function or function.start in seen:
            continue
        seen.add(function.start)
        offset = place.site.offset - where[number]
        found = offsets.setdefault(place.path, {})
        for part in (function, *_cold_parts(session, functions, function)):
            found.update((at + offset, ProbePlace(at + offset, 0)) for at in functions.returns(part))
    return {path: list(found.values()) for path, found in offsets.items() if found}


def _cold_parts(session: Session, functions: OperatorFunctions, function: Function) -> list[Function]:
    """The parts that it jumps to; they are in the same segment of the file."""
    parts = []
    for target in sorted(functions.calls_of(function)):
        part = session.symbolizer.function(target)
        if part and any(name.endswith(COLD) for name in part.names):
            parts.append(part)
    return parts


def addresses(session: Session, places: Sequence[TracePlace]) -> dict[int, int]:
    """Number of a place → its absolute address."""
    bases: dict[str, list[tuple[int, int, int]]] = {}
    for module in session.modules.modules:
        if module.image:
            loads = module.image.loads
            bases[module.image.path] = [(load.offset, load.filesz, module.base + load.vaddr) for load in loads]
    found = {}
    for number, place in enumerate(places):
        for start, size, address in bases.get(place.path, ()):
            if start <= place.site.offset < start + size:
                found[number] = address + place.site.offset - start
    return found


_KIND = "dispatch-sites-6"
"""Part of the file's name; to be changed whenever the scan finds something else."""


class SiteStore:
    """The sites of libraries, from the cache where it has them."""

    def __init__(self, session: Session, scanner: SiteScanner) -> None:
        probing = session.memory.architecture.probing
        self._registers = tuple(sorted(probing.saved)) if probing else ()
        self._scanner = scanner
        self._cache = SymbolCache()

    def begin(self, module: Module) -> Callable[[], LibrarySites]:
        """Begin with one library, and give what brings that to its end. Both raise SymbolFileError."""
        image = module.image
        if not image:
            return LibrarySites
        name = self._name(module)
        kept = self._load(name) if name else None
        if kept:
            return lambda: kept
        finish = self._scanner.begin(module)

        def end() -> LibrarySites:
            found = finish()
            if name:
                self._keep(name, found)
            return found

        return end

    def keep_by_child(self, modules: Sequence[Module]) -> Iterator[bytes]:
        """Have a child of ours put the places of some libraries into the cache, from now on. What is given back ends
        when it has done so. Raises SymbolFileError."""

        def keep() -> Iterator[bytes]:
            for module in modules:
                self.begin(module)()
            yield b""

        if not self._scanner.may_use_children:
            return iter(())
        return begun_by_child(keep, 1)

    def has(self, module: Module) -> bool:
        """The cache has the places of the library."""
        name = self._name(module)
        return bool(name) and self._load(name) is not None

    def _name(self, module: Module) -> str:
        """The name of its file in the cache; "" for a library of which nothing is kept."""
        key = module.kept_as
        return f"{key}.{self._scanner.depends_on}.{_KIND}" if key else ""

    def _keep(self, name: str, found: LibrarySites) -> None:
        packed = [site.packed(self._registers) for site in found.sites] + [(found.unseen, 0)]
        values, slots = array("Q", [each[0] for each in packed]), array("I", [each[1] for each in packed])
        checksum = crc32(slots.tobytes(), crc32(values.tobytes()))
        values.append(checksum)
        slots.append(0)
        self._cache.store(name, (values, slots))

    def _load(self, name: str) -> LibrarySites | None:
        """None unless every byte is what was written: a probe inside of an instruction would ruin the process."""
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
        found = [DispatchSite.unpacked(value, slot, self._registers) for value, slot in zip(values, slots)]
        return LibrarySites(tuple(found), unseen)
