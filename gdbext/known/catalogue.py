"""The catalogue of known bugs: our entries, those of other packages (entry point ``gdbext.known``), and how each is
recognised.

An entry says only what its link says: which versions have the bug, since when it is cured, what to do until then. Where
that is not known it is left out. Each entry has a test with its stacks in tests/unit/known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from gdbext.engine.entry_points import EntryPoint, entry_points
from gdbext.engine.record import Record
from gdbext.errors import AddOnError


class Affected(Record):
    """Versions of a package: ``since`` is the first that has the bug, ``before`` the first without it; "" for none."""

    package: str
    """Its name on PyPI (``threadpoolctl``), or ``python``, ``libgomp``."""
    since: str = ""
    before: str = ""

    @property
    def text(self) -> str:
        """The range in words: ``threadpoolctl before 3.7.0``."""
        since = f" from {self.since} on" if self.since else ""
        before = f" before {self.before}" if self.before else ""
        return f"{self.package}{since}{before}" if since or before else f"every {self.package}"

    @property
    def condition(self) -> str:
        """The same as a condition, for where nobody knows the version: "if your threadpoolctl is older than 3.7.0"; ""
        where all versions have the bug."""
        since = f"is {self.since} or newer" if self.since else ""
        before = f"is older than {self.before}" if self.before else ""
        both = " and ".join(filter(None, (since, before)))
        return f"if your {self.package} {both}" if both else ""

    def includes(self, version: str) -> bool:
        """True if that version of the package has the bug."""
        key = version_key(version)
        begun = not self.since or version_key(self.since) <= key
        return begun and (not self.before or key < version_key(self.before))


def version_key(version: str) -> tuple[tuple[int, ...], bool]:
    """Versions in their order: ``2.9`` < ``2.10.0rc1`` < ``2.10`` = ``2.10.0+cpu``."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found.group().split(".")] if found is not None else []
    while numbers and not numbers[-1]:
        numbers.pop()
    rest = version[found.end() :] if found is not None else version
    return tuple(numbers), re.match(r"[._-]?(a|b|c|rc|alpha|beta|dev|pre)\d*", rest) is None


class ThreadPattern(Record):
    """The part of one of the threads that hang. What is empty may be anything."""

    python: tuple[tuple[str, str], ...] = ()
    """(file name, function) of some of its Python frames, the innermost first: ``("threadpoolctl.py", "_find")``. The
    file may have folders in front: ``concurrent/futures/thread.py``."""
    native: tuple[str, ...] = ()
    """Some of its native functions, the innermost first, as reports name them, without arguments."""
    library: str = ""
    """The beginning of the file name of the innermost library that is not the C library: ``libgomp``."""
    waits_for: tuple[str, ...] = ()
    """Kinds of waits, any of which it is in: words of the JSON report."""
    missing_workers: str = ""
    """The pool whose workers it waits for and that the process lacks."""


class KnownBug(Record):
    """One entry of the catalogue. The process hangs because of it where each pattern fits a thread of its own."""

    id: str
    """The project and the number of its issue: ``cpython#115634``."""
    title: str
    """The fault, in one clause."""
    url: str
    """The page that describes it: versions and cure come from there."""
    affected: tuple[Affected, ...]
    cure: str
    """The workaround or update, as a clause that begins with a verb."""
    threads: tuple[ThreadPattern, ...]


class ThreadFacts:
    """``native``: names and libraries of the innermost frames, asked for only where the rest fits."""

    def __init__(
        self,
        label: str,
        python: Sequence[tuple[str, str]] = (),
        waits_for: str = "",
        missing_workers: str = "",
        native: Callable[[], Sequence[tuple[str, str]]] = tuple,
    ) -> None:
        self.label = label
        self.python = python
        self.waits_for = waits_for
        self.missing_workers = missing_workers
        self._native = native
        self._frames: Sequence[tuple[str, str]] | None = None

    @property
    def native(self) -> Sequence[tuple[str, str]]:
        """(function, file name of the library), the innermost first."""
        if self._frames is None:
            self._frames = self._native()
        return self._frames

    def fits(self, pattern: ThreadPattern) -> bool:
        """The thread does what the pattern says."""
        if pattern.waits_for and self.waits_for not in pattern.waits_for:
            return False
        if pattern.missing_workers and self.missing_workers != pattern.missing_workers:
            return False
        if not _in_order(pattern.python, self.python, _is_frame):
            return False
        if pattern.native and not _in_order(pattern.native, [name for name, _ in self.native], str.__eq__):
            return False
        return not pattern.library or self._library.startswith(pattern.library)

    @property
    def _library(self) -> str:
        own = (library for _, library in self.native if not library.startswith(("libc.", "libc-", "libpthread", "ld-")))
        return next(own, "")


def _is_frame(wanted: tuple[str, str], frame: tuple[str, str]) -> bool:
    file, function = frame
    return function.rpartition(".")[2] == wanted[1] and f"/{file}".endswith(f"/{wanted[0]}")


def _in_order(wanted: Sequence[object], there: Sequence[object], equal: Callable[..., bool]) -> bool:
    """All that is wanted is there in this order, with anything in between."""
    rest = iter(there)
    return all(any(equal(each, one) for one in rest) for each in wanted)


class KnownMatch(Record):
    """``evidence``: which thread fits which pattern. ``condition``: what is to be true of a version that is unknown."""

    bug: KnownBug
    evidence: tuple[str, ...]
    condition: str = ""

    @property
    def line(self) -> str:
        """``Known: joblib/threadpoolctl#239, … (threadpoolctl before 3.7.0); …``."""
        affected = self.condition or ", ".join(each.text for each in self.bug.affected)
        return f"Known: {self.bug.id}, {self.bug.title} ({affected}); {self.bug.cure}. {self.bug.url}"


def matches(
    bugs: Sequence[KnownBug], threads: Sequence[ThreadFacts], versions: Mapping[str, str]
) -> Iterator[KnownMatch]:
    """The bugs that fit the process. ``versions`` of packages, as far as they are known."""
    kinds = {thread.waits_for for thread in threads}
    functions = {function.rpartition(".")[2] for thread in threads for _, function in thread.python}
    for bug in bugs:
        if not all(_is_possible(pattern, kinds, functions) for pattern in bug.threads):
            continue
        condition = _condition(bug, versions)
        found = _assigned(bug.threads, list(threads)) if condition is not None else None
        if found:
            yield KnownMatch(bug, tuple(_evidence(one, each) for one, each in zip(found, bug.threads)), condition or "")


def _is_possible(pattern: ThreadPattern, kinds: set[str], functions: set[str]) -> bool:
    """Some thread may fit: sorts out all but a few entries without a look at any stack."""
    if pattern.waits_for and kinds.isdisjoint(pattern.waits_for):
        return False
    return all(function in functions for _, function in pattern.python)


def _condition(bug: KnownBug, versions: Mapping[str, str]) -> str | None:
    """The condition on versions that are not known; None where a known one has not got the bug."""
    known = [each for each in bug.affected if each.package in versions]
    if known:
        return "" if any(each.includes(versions[each.package]) for each in known) else None
    return " or ".join(filter(None, (each.condition for each in bug.affected)))


def _assigned(patterns: Sequence[ThreadPattern], threads: list[ThreadFacts]) -> list[ThreadFacts] | None:
    """A thread of its own for each pattern; None where there is none."""
    if not patterns:
        return []
    for thread in threads:
        if thread.fits(patterns[0]):
            rest = _assigned(patterns[1:], [each for each in threads if each is not thread])
            if rest is not None:
                return [thread, *rest]
    return None


def _evidence(thread: ThreadFacts, pattern: ThreadPattern) -> str:
    """``worker-1 (tid 7): in threadpoolctl.py _find, waits for gil``."""
    parts = [f"in {file} {function}" for file, function in pattern.python]
    parts += [f"in {name}" for name in pattern.native]
    parts += [f"inside {pattern.library}"] if pattern.library else []
    parts += [f"waits for {thread.waits_for}"] if pattern.waits_for else []
    parts += [f"{pattern.missing_workers} has no workers here"] if pattern.missing_workers else []
    return f"{thread.label}: {', '.join(parts)}"


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
