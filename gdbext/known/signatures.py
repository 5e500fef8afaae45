"""Compares the facts of a process with entries of the catalog, the cheapest test first.

The facts come from the snapshots of a process, or from an older JSON report (tools/known).
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache, cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gdbext.known import NO_CHILD, KnownBug, ThreadPattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    NativeName = Callable[[], Sequence[str]]  # reads the names of a frame's function, if its library matches


class ThreadFacts:
    """The facts about one thread, under the names of ThreadPattern's fields."""

    def __init__(
        self,
        label: str,
        python: Sequence[tuple[str, str]] = (),
        waits_for: str = "",
        missing_workers: str = "",
        read_native: Callable[[], Sequence[tuple[NativeName, str]]] = tuple,
        *,
        tid: int = 0,
        roles: Sequence[str] = (),
        names: Sequence[str] = (),
        state: str = "waiting",
        holds: Sequence[str] = (),
        owner: int | None = None,
        owner_gone: bool = False,
        group: str = "",
        lost_signal: bool = False,
        tasks: Sequence[Sequence[tuple[str, str]]] = (),
    ) -> None:
        """``label`` names the thread in evidence; ``python``: (file, function) of its Python frames, innermost first;
        ``read_native`` returns (names, library file) of its native frames, innermost first."""
        self.label = label
        self.python, self.read_native, self.tasks = python, read_native, tasks
        self.waits_for, self.missing_workers, self.lost_signal = waits_for, missing_workers, lost_signal
        self.tid, self.roles, self.names, self.state = tid, roles, names, state
        self.holds, self.owner, self.owner_gone, self.group = holds, owner, owner_gone, group

    @cached_property
    def native(self) -> Sequence[tuple[NativeName, str]]:
        """(names, library file) of the native frames, read on demand."""
        return self.read_native()

    def fits(self, pattern: ThreadPattern) -> bool:
        """True if the thread matches the pattern, except for held_by and same_group: see _is_linked."""
        if pattern.waits_for and self.waits_for not in pattern.waits_for:
            return False
        if pattern.missing_workers and self.missing_workers != pattern.missing_workers:
            return False
        if not self._attributes_match(pattern) or not _in_order(pattern.python, self.python, _is_frame):
            return False
        if pattern.task and not any(_in_order(pattern.task, task, _is_frame) for task in self.tasks):
            return False
        if pattern.library:
            c_library = ("libc.", "libc-", "libpthread", "ld-")
            libraries = (library for _, library in self.native if library and not library.startswith(c_library))
            if not next(libraries, "").startswith(pattern.library):
                return False
        return not pattern.native or _in_order(pattern.native, self.native, _is_native)

    def _attributes_match(self, pattern: ThreadPattern) -> bool:
        """True if role, name, state and held objects match."""
        return (
            (not pattern.role or pattern.role in self.roles)
            and (not pattern.state or pattern.state == self.state)
            and not (pattern.without_python and self.python)
            and (not pattern.name or any(name.startswith(pattern.name) for name in self.names))
            and (self.lost_signal or not pattern.lost_signal)
            and set(pattern.holds) <= set(self.holds)
            and (self.owner_gone or not pattern.owner_gone)
        )


def _is_frame(wanted: tuple[str, str], frame: tuple[str, str]) -> bool:
    """True if a Python frame, (file, function), matches an item of ThreadPattern.python."""
    file, function = frame
    is_function = not wanted[1] or f".{function}".endswith(f".{wanted[1]}")
    return is_function and f"/{file}".endswith(f"/{wanted[0]}")


def _is_native(wanted: str, frame: tuple[NativeName, str]) -> bool:
    """True if a native frame, (names, library file), matches an item of ThreadPattern.native."""
    library, _, function = wanted.rpartition("!")
    names, frame_library = frame
    if not frame_library.startswith(library):
        return False
    return not function or any(_is_function(function, name) for name in names())


def _is_function(wanted: str, name: str) -> bool:
    """True if ``name`` is ``wanted`` with any arguments, template arguments, compiler's suffixes and versions."""
    if not name.startswith(wanted):
        return False
    return wanted.endswith("::") or name[len(wanted) : len(wanted) + 1] in ("", "(", "<", ",", ".", "@", " ", "[")


def _in_order(wanted: Sequence[object], actual: Sequence[object], equal: Callable[..., bool]) -> bool:
    """True if each wanted item equals one of ``actual``, in this order, with any others in between."""
    rest = iter(actual)
    return all(any(equal(item, other) for other in rest) for item in wanted)


def child_relation(word: str, commands: Sequence[str]) -> bool | None:
    """True if a relation (RELATIONS, NO_CHILD) of a process to its descendants holds, by their command lines."""
    if word.startswith(NO_CHILD):
        return not any(word[len(NO_CHILD) :] in command for command in commands)
    if word == "no-workers":  # multiprocessing's helpers run no jobs of a program
        helpers = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
        return all(any(helper in command for helper in helpers) for command in commands)
    return bool(commands) is (word == "children")


class ProcessFacts:
    """The facts about a process. ``version`` returns the version of a package, ``variable`` (is set, value) of an
    environment variable, ``relation`` the truth of a word of RELATIONS; each returns None if unknown."""

    def __init__(
        self,
        threads: Sequence[ThreadFacts],
        version: Callable[[str], str | None] = lambda _: None,
        variable: Callable[[str], tuple[bool, str] | None] = lambda _: None,
        relation: Callable[[str], bool | None] = lambda _: None,
        architecture: str = "",
        libraries: Sequence[str] | None = None,
    ) -> None:
        self.threads = threads
        self.version = version
        self.variable = variable
        self.relation = relation
        self.architecture = architecture
        self._libraries = libraries
        self.has_library, self._functions_of = cache(self._has_library), cache(self._sorted_functions)
        self._frames_of: dict[str, dict[str, list[NativeName]]] = {}
        """Kind of wait → library file → readers of names, of the frames in stacks of threads with that wait."""
        self.has_tasks = any(thread.tasks for thread in threads)
        self.has_groups = any(thread.group for thread in threads)
        self.has_lost_signals = any(thread.lost_signal for thread in threads)
        self.kinds = {thread.waits_for for thread in threads}
        self._frames: set[tuple[str, str]] = set()
        for file, function in {frame for thread in threads for frame in thread.python}:
            name = file.rpartition("/")[2]
            self._frames |= {(name, function.rpartition(".")[2]), (name, "")}

    def may_match(self, pattern: ThreadPattern) -> bool:
        """True if some thread may match: excludes nearly all entries without reading native stacks."""
        if pattern.waits_for and self.kinds.isdisjoint(pattern.waits_for):
            return False
        for file, function in pattern.python:
            if (file.rpartition("/")[2], function.rpartition(".")[2]) not in self._frames:
                return False
        if (pattern.task and not self.has_tasks) or (pattern.same_group >= 0 and not self.has_groups):
            return False
        if pattern.lost_signal and not self.has_lost_signals:
            return False
        if pattern.library and not self.has_library(pattern.library):
            return False
        if not all(self.has_library(name.rpartition("!")[0]) for name in pattern.native):
            return False
        kinds = pattern.waits_for or ("",)
        return not pattern.native or any(
            all(self._has_function(kind, name) for name in pattern.native) for kind in kinds
        )

    def _has_function(self, kind: str, wanted: str) -> bool:
        """True if a thread with that kind of wait ("": any thread) is in that native function."""
        library, _, function = wanted.rpartition("!")
        names = self._functions_of(kind, library)
        if not function:
            return bool(names)
        first = bisect_left(names, function)
        while first < len(names) and names[first].startswith(function):
            if _is_function(function, names[first]):
                return True
            first += 1
        return False

    def _sorted_functions(self, kind: str, library: str) -> list[str]:
        """The sorted functions of libraries whose names begin with ``library`` in stacks of threads with that wait ("":
        any); "" for unnamed ones."""
        frames = self._frames_of.get(kind)
        if frames is None:
            frames = self._frames_of[kind] = {}
            natives = [thread.native for thread in self.threads if not kind or thread.waits_for == kind]
            for native in {id(native): native for native in natives}.values():  # threads of a pool share theirs
                for names, frame_library in native:
                    frames.setdefault(frame_library, []).append(names)
        functions: set[str] = set()
        for frame_library, readers in frames.items():
            if frame_library.startswith(library):
                functions.update(*(names() or ("",) for names in readers))
        return sorted(functions)

    def _has_library(self, beginning: str) -> bool:
        """True if a library whose name starts with ``beginning`` is loaded, or the loaded ones are unknown."""
        libraries = self._libraries
        return libraries is None or not beginning or any(name.startswith(beginning) for name in libraries)

    def matches_process(self, bug: KnownBug) -> bool:
        """True if architecture and relations match; an unknown relation does not."""
        is_architecture = not bug.architecture or bug.architecture == self.architecture
        return is_architecture and all(self.relation(word) is True for word in bug.process)


class KnownBugReport(NamedTuple):
    """A known bug that matches the process."""

    id: str
    title: str
    url: str
    affected: tuple[str, ...]
    """The versions that have it: ``threadpoolctl before 3.7.0``."""
    fixed_in: tuple[str, ...]
    """``threadpoolctl 3.7.0``; empty if no fixed version is known."""
    cure: str
    condition: str
    """The condition on unknown versions and variables under which it is this bug; "" if all are known."""
    matched: tuple[str, ...]
    """The evidence: threads and facts that match."""

    @classmethod
    def of(cls, bug: KnownBug, condition: str, matched: tuple[str, ...]) -> KnownBugReport:
        """The report on an entry that matches."""
        return cls(
            bug.id,
            bug.title,
            bug.url,
            tuple(versions.text for versions in bug.affected),
            tuple(dict.fromkeys(f"{fixed.package} {fixed.before}" for fixed in bug.affected if fixed.before)),
            bug.cure,
            condition,
            matched,
        )

    @property
    def line(self) -> str:
        """``joblib/threadpoolctl#239: … (threadpoolctl < 3.7.0); …``."""
        return f"{self.id}: {self.title} ({self.condition or ' or '.join(self.affected)}); {self.cure}. {self.url}"


def matches(bugs: Sequence[KnownBug], process: ProcessFacts) -> Iterator[KnownBugReport]:
    """The reports on the bugs that match the process."""
    for bug in bugs:
        if not all(process.may_match(pattern) for pattern in bug.threads) or not process.matches_process(bug):
            continue
        threads = _assign_threads(bug.threads, process.threads)
        if not threads or any(thread.fits(pattern) for pattern in bug.absent for thread in process.threads):
            continue
        condition = _open_condition(bug, process)
        if condition is not None:
            evidence = [_evidence_text(thread, pattern) for thread, pattern in zip(threads, bug.threads)]
            facts = ", ".join(filter(None, (*bug.process, bug.architecture)))
            evidence += [f"the process: {facts}"] if facts else []
            yield KnownBugReport.of(bug, condition, tuple(evidence))


def _assign_threads(patterns: Sequence[ThreadPattern], threads: Sequence[ThreadFacts]) -> list[ThreadFacts]:
    """Distinct threads, one per pattern in order; [] if impossible."""
    candidates: list[list[ThreadFacts]] = []
    for pattern in patterns:
        # few, since threads of a pool all do the same
        candidates.append([*islice((thread for thread in threads if thread.fits(pattern)), 32)])
        if not candidates[-1]:
            return []
    return _choose_distinct(patterns, candidates, []) or []


def _choose_distinct(
    patterns: Sequence[ThreadPattern], candidates: Sequence[Sequence[ThreadFacts]], chosen: list[ThreadFacts]
) -> list[ThreadFacts] | None:
    """``chosen``, extended to one distinct and linked candidate per pattern; None if impossible."""
    if len(chosen) == len(patterns):
        return chosen if all(_is_linked(other, pattern, chosen) for other, pattern in zip(chosen, patterns)) else None
    for thread in candidates[len(chosen)]:
        if all(thread is not other for other in chosen):
            assignment = _choose_distinct(patterns, candidates, [*chosen, thread])
            if assignment is not None:
                return assignment
    return None


def _is_linked(thread: ThreadFacts, pattern: ThreadPattern, chosen: Sequence[ThreadFacts]) -> bool:
    """True if held_by and same_group of the pattern hold; ``chosen``: the thread of each pattern, by index."""
    if pattern.held_by >= 0 and thread.owner != chosen[pattern.held_by].tid:
        return False
    return pattern.same_group < 0 or (thread.group != "" and thread.group == chosen[pattern.same_group].group)


def _open_condition(bug: KnownBug, process: ProcessFacts) -> str | None:
    """The condition on unknown variables and versions, "" if all are known; None if the known ones exclude the bug."""
    parts = []
    for condition in bug.environment:
        holds = _variable_holds(condition, process)
        if holds is False:
            return None
        if holds is None:
            name, equals, value = condition.lstrip("!").partition("=")
            parts.append(f"{name} is {'not ' if condition.startswith('!') else ''}{value if equals else 'set'}")
    versions = ((affected, process.version(affected.package)) for affected in bug.affected)
    installed = [(affected, version) for affected, version in versions if version is not None]
    if installed and not any(affected.includes(version) for affected, version in installed):
        return None
    on_versions = "" if installed else " or ".join(filter(None, (affected.condition for affected in bug.affected)))
    parts = [*filter(None, (on_versions,)), *parts]
    return f"if {' and '.join(parts)}" if parts else ""


def _variable_holds(condition: str, process: ProcessFacts) -> bool | None:
    """True if a condition (KnownBug.environment) holds; None if the variable is unknown."""
    name, equals, value = condition.lstrip("!").partition("=")
    state = process.variable(name)
    if not state:
        return None
    is_set, actual = state
    return (is_set and (not equals or actual == value)) is not condition.startswith("!")


def _evidence_text(thread: ThreadFacts, pattern: ThreadPattern) -> str:
    """``worker-1 (tid 7): in threadpoolctl.py _find, waits for gil``."""
    parts = [f"in {file} {function}".rstrip() for file, function in pattern.python]
    parts += [f"its task in {file} {function}" for file, function in pattern.task]
    parts += [f"in {name.replace('!', ' ')}" for name in pattern.native]
    parts += [f"inside {pattern.library}"] if pattern.library else []
    parts += [f"waits for {thread.waits_for}"] if pattern.waits_for else []
    parts += ["held by a thread that is gone"] if pattern.owner_gone else []
    parts += ["whose signal was lost"] if pattern.lost_signal else []
    parts += [f"in the group {thread.group}"] if pattern.same_group >= 0 else []
    parts += [f"holds {kind}" for kind in pattern.holds]
    parts += [f"{pattern.missing_workers} has no workers here"] if pattern.missing_workers else []
    parts += [pattern.state] if pattern.state and not parts else []
    return f"{thread.label}: {', '.join(parts) or pattern.role}"
