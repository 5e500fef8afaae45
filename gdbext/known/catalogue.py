"""The catalogue: our entries, and those of other packages (entry point ``gdbext.known``).

An entry says only what its link says: which versions have the bug, since when it is cured, what to do until then. Where
that is not known it is left out. Each entry has a test with its stacks in tests/unit/known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.engine.entry_points import EntryPoint, entry_points
from gdbext.errors import AddOnError
from gdbext.known.known_bug import Affected, KnownBug, ThreadPattern

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = "gdbext.known"
"""The group of entry points: NAME = "module:attribute", a KnownBug or a tuple of them."""

BUGS = (
    KnownBug(
        "joblib/threadpoolctl#239",
        "a callback in Python is called below dl_iterate_phdr, whose lock a thread with the GIL waits for",
        "https://github.com/joblib/threadpoolctl/issues/239",
        (Affected("threadpoolctl", before="3.7.0"),),
        "update threadpoolctl to 3.7.0, which reads /proc/self/maps instead",
        (
            ThreadPattern(python=(("threadpoolctl.py", "_find_libraries_with_dl_iterate_phdr"),), waits_for=("gil",)),
            ThreadPattern(waits_for=("loader-lock",)),
        ),
    ),
    KnownBug(
        "gcc#52303",
        "libgomp keeps its worker threads for the next parallel region, and a forked child waits for them there",
        "https://gcc.gnu.org/bugzilla/show_bug.cgi?id=52303",
        (Affected("libgomp"),),
        "start processes with 'spawn', or call torch.set_num_threads(1) before the fork",
        (ThreadPattern(library="libgomp", missing_workers="OpenMP"),),
    ),
)
"""All entries of ours, in no order."""


def catalogue(note: Callable[[AddOnError], None]) -> tuple[KnownBug, ...]:
    """All entries. ``note`` is told what of another package cannot be used."""
    added = [bug for point in entry_points(GROUP) for bug in _entries(point, note)]
    known = {bug.id for bug in added}
    return (*added, *(bug for bug in BUGS if bug.id not in known))


def _entries(point: EntryPoint, note: Callable[[AddOnError], None]) -> Iterator[KnownBug]:
    try:
        found = point.load()
    except AddOnError as error:
        note(error)
        return
    several = isinstance(found, (tuple, list)) and not isinstance(found, KnownBug)
    for entry in found if several else (found,):
        if isinstance(entry, KnownBug):
            yield entry
        else:
            note(AddOnError(f"{point.group} {point.name!r} of {point.package} is no gdbext.KnownBug: {entry!r:.80}"))
