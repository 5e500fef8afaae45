"""The places of a trace: those of the operators that are wanted, and those that all operators share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.live.hooks.all_calls import AllCalls
from gdbext.live.hooks.operator_functions import OperatorFunctions
from gdbext.probes.bpf.place_program import TracePlace
from gdbext.probes.places.dispatch_site import DispatchSite
from gdbext.probes.places.places import ProbePlaces
from gdbext.probes.places.site_scan import LibrarySites, SiteScanner
from gdbext.probes.places.site_store import SiteStore
from gdbext.torch.symbols import OPERATOR_STRUCT

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.torch.registry.operators import Operator


class TracePlaces:
    """Finds them for one session. Raises TargetError, SymbolFileError where libtorch cannot be used."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._functions = OperatorFunctions(session)
        self._store = SiteStore(session, SiteScanner(session, self._functions))
        self._entries = ProbePlaces(session)
        self.unseen = 0
        """Functions, in the libraries that were gone through so far, whose dispatches no place sees."""

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

    @cached_property
    def _torch(self) -> LibrarySites:
        return self._store.sites(self._entries.module)

    def _shared(self, only: Collection[str] = ()) -> Iterator[tuple[str, DispatchSite]]:
        for module in AllCalls(self._session, self._functions).modules(only):
            path = module.image.path if module.image is not None else module.path
            is_torch = module.name == OPERATOR_STRUCT.library
            found = self._torch if is_torch else self._store.sites(module)
            self.unseen += found.unseen
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
