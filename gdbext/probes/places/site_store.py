"""The places of a library, found once and kept in the user's cache folder: looking through 280 MB of code takes 2 s."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING
from zlib import crc32

from gdbext.formats.symbols.symbol_cache import SymbolCache
from gdbext.probes.places.dispatch_site import DispatchSite
from gdbext.probes.places.site_scan import LibrarySites

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.probes.places.site_scan import SiteScanner
    from gdbext.process.modules import Module

_KIND = "dispatch-sites-3"
"""Part of the file's name; to be changed whenever the scan finds something else."""


class SiteStore:
    """Asks the cache first."""

    def __init__(self, session: Session, scanner: SiteScanner, cache: SymbolCache | None = None) -> None:
        probing = session.memory.architecture.probing
        self._registers = tuple(sorted(probing.saved)) if probing is not None else ()
        self._scanner = scanner
        self._cache = SymbolCache() if cache is None else cache

    def sites(self, module: Module) -> LibrarySites:
        """The places of the library. Raises SymbolFileError."""
        image = module.image
        if image is None:
            return LibrarySites()
        name = f"{image.build_id[:80]}.{self._scanner.depends_on}.{_KIND}" if image.build_id else None
        kept = self._load(name) if name else None
        if kept is not None:
            return kept
        found = self._scanner.scan(module)
        if name:
            self._keep(name, found)
        return found

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
        if arrays is None or len(arrays[0]) != len(arrays[1]) or not len(arrays[0]):
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
