"""Finds the places of probes: in the functions of operators, in functions that all share, in libraries loaded later."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.live.dispatch_places import AllCalls, OperatorFunctions
from gdbext.tools.probes.bpf.bpf_kernel import ProbePlace
from gdbext.tools.probes.bpf.place_program import TracePlace
from gdbext.tools.probes.site_scan import COLD, LibrarySites, ProbePlaces, SiteScanner, address_at
from gdbext.torch.assumed_symbols import OPERATOR_STRUCT
from gdbext.torch.registry.kernel import plain_name

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.torch.registry import Operator


class TracePlaces:
    """Finds the places for one session."""

    def __init__(self, session: Session) -> None:
        """Raises TargetError, SymbolFileError if libtorch cannot be used."""
        self._session = session
        self._calls = AllCalls(session)
        self._functions = self._calls.functions
        self._scanner = SiteScanner(session, self._calls)
        self._entries = ProbePlaces(session)
        self._library_sites: dict[int, LibrarySites] = {}
        """First address of a library other than libtorch_cpu → its sites."""
        self.unseen: Counter[str] = Counter()
        """Library searched so far → number of its functions whose dispatches no place sees."""

    def everything(self) -> list[TracePlace]:
        """The places that together see every dispatch of every operator."""
        return [*self._own_places(self._session.dispatcher.operators()), *self.shared_places((), filtered=False)]

    def places_of(self, operators: Collection[Operator]) -> list[TracePlace]:
        """The places that see the dispatches of these operators: in their own functions, and the shared ones, where the
        BPF program ignores other operators."""
        return [*self._own_places(operators), *self.shared_places((), filtered=True)]

    def begin(self) -> None:
        """Start child processes that search the libraries, while the caller reads something else."""
        self._scans  # noqa: B018

    @cached_property
    def _scans(self) -> tuple[Callable[[], LibrarySites], Iterator[bytes]]:
        """Start child processes that scan the libraries: (a function that waits for libtorch_cpu's sites, an iterator
        that ends when the sites of the others are in the cache)."""
        module = self._entries.module
        others_cached: Iterator[bytes] = iter(())
        if not self._scanner.is_cached(module):
            others = [other for other in self._calls.modules() if other.name != OPERATOR_STRUCT.library]
            others_cached = self._scanner.cache_by_child(others)
        return self._scanner.begin(module), others_cached

    @cached_property
    def _torch_sites(self) -> LibrarySites:
        """The sites of libtorch_cpu. The functions of operators are read while children search the libraries."""
        finish, others_cached = self._scans
        self._functions.structs  # noqa: B018
        sites = finish()
        deque(others_cached, 0)
        return sites

    def shared_places(self, paths: Collection[str], filtered: bool) -> list[TracePlace]:
        """The places in the libraries of these paths (() for all) that all operators share. ``filtered``: only wanted
        operators count there."""
        places = []
        for module in self._calls.modules(paths):
            if module.name == OPERATOR_STRUCT.library:
                library = self._torch_sites
            else:
                if module.start not in self._library_sites:
                    self._library_sites[module.start] = self._scanner.begin(module)()
                library = self._library_sites[module.start]
            if library.unseen:
                starts = filter(None, (address_at(module, offset) for offset in library.unseen))
                names = function_names(self._session.symbolizer, list(starts))
                self.unseen[f"{module.name}: {names}" if names else module.name] += len(library.unseen)
            path = module.image.path if module.image else module.path
            places += [TracePlace(path, site, filtered=filtered) for site in library.sites if site.shared]
        return places

    def _own_places(self, operators: Collection[Operator]) -> Iterator[TracePlace]:
        """The places in the operators' own functions."""
        path, sites = self._entries.path, self._torch_sites.sites
        offsets = [site.offset for site in sites]
        for operator in operators:
            for _, address, size in self._functions.extents(operator):
                start = self._entries.file_offset(address)
                if start is not None:
                    inside = sites[bisect_left(offsets, start) : bisect_left(offsets, start + size)]
                    yield from (TracePlace(path, site, operator.address) for site in inside)


def function_names(symbolizer: Symbolizer, starts: Collection[int]) -> str:
    """The names of the first three functions that start at these addresses: ``mine::f, mine::g, …``."""
    functions = (symbolizer.function(start) for start in sorted(starts))
    names = [plain_name(function.demangled[0]) for function in functions if function]
    return ", ".join(names[:3] + ["…"] * (len(names) > 3))


def unseen_in(unseen: Counter[str]) -> tuple[str, ...]:
    """``7 in libtorch_cpu.so``, ``1 in ops.so: mine::f`` for each library that has some."""
    return tuple(f"{count} in {name}" for name, count in sorted(unseen.items()) if count)


class NewLibrarySites:
    """Finds places in libraries that were loaded since the last find(). A failing find() is retried twice."""

    def __init__(self, session: Session, filtered: bool) -> None:
        """``filtered``: only wanted operators count there. Raises TargetGone."""
        self.session = session  # the session that knows the libraries found last
        self._filtered = filtered
        self.unseen: Counter[str] = Counter()  # library → number of its functions whose dispatches no site sees
        self._mapped = self._libraries()
        self._tries = 0

    def find(self) -> Sequence[TracePlace]:
        """The places in libraries that were loaded since the last call. Raises GdbextError."""
        mapped = self._libraries()
        new = mapped - self._mapped
        self._tries = self._tries + 1 if new else 0
        places: Sequence[TracePlace] = ()
        if 0 < self._tries <= 3:
            self.session = self.session.session_after_stop(self.session.target)
            finder = TracePlaces(self.session)
            places = finder.shared_places(new, self._filtered)
            self.unseen += finder.unseen
        self._mapped, self._tries = mapped, 0
        return places

    def _libraries(self) -> frozenset[str]:
        """The paths of the files from which code is mapped now."""
        maps = self.session.target.memory.maps()
        return frozenset(
            mapping.path for mapping in maps if "x" in mapping.permissions and mapping.path.startswith("/")
        )


def return_places(session: Session, places: Sequence[TracePlace]) -> dict[str, list[ProbePlace]]:
    """Path of a file → the ``ret`` instructions of the functions that these places are in."""
    functions, symbolizer = OperatorFunctions(session), session.symbolizer
    by_file: dict[str, dict[int, ProbePlace]] = {}
    seen: set[int] = set()
    for number, address in addresses(session, places).items():
        function = symbolizer.function(address)
        if not function or function.start in seen:
            continue
        seen.add(function.start)
        targets = (symbolizer.function(target) for target in sorted(functions.calls_of(function)))
        # The parts that it jumps to are in the same segment of the file.
        cold = [part for part in targets if part and any(name.endswith(COLD) for name in part.names)]
        to_offset = places[number].site.offset - address
        for part in (function, *cold):
            for offset in (address + to_offset for address in functions.returns(part)):
                by_file.setdefault(places[number].path, {})[offset] = ProbePlace(offset, 0)
    return {path: list(returns.values()) for path, returns in by_file.items()}


def addresses(session: Session, places: Sequence[TracePlace]) -> dict[int, int]:
    """Position in ``places`` → address of the place in the process; without places that are not mapped."""
    modules = {module.image.path: module for module in session.modules.modules if module.image}
    by_number: dict[int, int] = {}
    for number, place in enumerate(places):
        address = address_at(modules[place.path], place.site.offset) if place.path in modules else None
        if address is not None:
            by_number[number] = address
    return by_number
