"""Compares a process with the known bugs: threads by their reports and snapshots, versions, variables and relations
where an entry asks for them. Imported only where a thread waits, or the program crashed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gdbext.diagnosis.kinds.crashed import CRASH
from gdbext.engine.targets.system.linux import HIDDEN
from gdbext.known import catalogue
from gdbext.known.package_versions import PackageVersions
from gdbext.known.signatures import KnownBugReport, ProcessFacts, ThreadFacts, child_relation, matches
from gdbext.torch.layout_choice import torch_version

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gdbext.diagnosis.report.finding import Finding
    from gdbext.diagnosis.report.thread_report import Frame, ThreadReport
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.known.signatures import NativeName

_INNER = 200
"""Native frames of a thread that may be named, where an entry asks for some."""


def known_bugs(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport], findings: Sequence[Finding]
) -> tuple[KnownBugReport, ...]:
    """The bugs because of which the process may hang. What of other packages cannot be used is noted as an error."""
    crashed = {tid for finding in findings if finding.kind is CRASH for tid in finding.threads}
    native = _NativeFrames()
    facts = [_facts(process, native, thread, crashed) for thread in threads]
    bugs = catalogue(lambda error: session.errors.note(error, "known bugs"))
    return tuple(matches(bugs, _process_facts(session, process, facts)))


def _process_facts(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadFacts]) -> ProcessFacts:
    return ProcessFacts(
        threads,
        _Versions(session, threads).version,
        partial(_variable, session),
        partial(_relation, session, process),
        session.target.architecture.name,
        [module.name for module in session.modules.modules],
    )


class _Versions:
    """Versions of packages, read when an entry whose stacks fit asks for one."""

    def __init__(self, session: Session, threads: Sequence[ThreadFacts]) -> None:
        self._session = session
        self._threads = threads
        self._packages: PackageVersions | None = None

    def version(self, package: str) -> str | None:
        """The version of a package; None where it cannot be known."""
        session = self._session
        if package == "python":
            return session.python.version or None
        if not self._packages:
            paths = {file for thread in self._threads for file, _ in thread.python}
            known = {"torch": torch_version(session.modules) or None if session.has_torch else None}
            self._packages = PackageVersions(session.modules, session.target.origin.files, paths, known)
        return self._packages.version(package)


def _variable(session: Session, name: str) -> tuple[bool, str] | None:
    """The variable as the process was started with it; a recording has not all, and hides the values of some."""
    environ = session.target.origin.environ()
    if not environ or (name not in environ and session.target.origin.recorded) or environ.get(name) == HIDDEN:
        return None
    return name in environ, environ.get(name, "")


def _relation(session: Session, process: ProcessSnapshot, word: str) -> bool | None:
    if word == "one-thread":
        return len(process.tids) == 1
    if word == "forked":
        return True if process.fork_evidence else None
    if not session.procfs:
        return None
    children = list(session.procfs.children().values())
    family = [*children, *(each for theirs in session.procfs.grandchildren().values() for each in theirs)]
    return child_relation(word, [each.command or each.name for each in family])


def _facts(
    process: ProcessSnapshot, native: _NativeFrames, thread: ThreadReport, crashed: Collection[int]
) -> ThreadFacts:
    wait, snapshot = thread.wait, process.thread(thread.tid)
    missing = wait.detail.missing_workers if wait else None
    collective = wait.detail.collective if wait else None
    owners = wait.owner_tids[:1] if wait else ()
    return ThreadFacts(
        thread.label,
        _lines(thread.python_frames),
        wait.kind.value if wait else "",
        missing.pool.name if missing and missing.forked else "",
        partial(native.of, snapshot) if snapshot else tuple,
        tid=thread.tid,
        roles=["main" if thread.tid == process.pid else "other", *(["crashed"] if thread.tid in crashed else [])],
        names=list(filter(None, (thread.python_name, thread.name))),
        state=thread.state.value,
        holds=[held.kind.value for held in thread.holds],
        owner=owners[0] if owners else None,
        owner_gone=wait is not None and wait.gone_owner is not None,
        group=collective.group if collective else "",
        lost_signal=wait is not None and wait.detail.lost_signal,
        tasks=[_lines(task.frames) for task in thread.loop.tasks] if thread.loop else (),
    )


def _lines(frames: Sequence[Frame]) -> list[tuple[str, str]]:
    return [(frame.file, frame.function) for frame in frames]


class _NativeFrames:
    """The native frames of threads; those that have the same get the same list."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], list[tuple[NativeName, str]]] = {}

    def of(self, thread: ThreadSnapshot) -> list[tuple[NativeName, str]]:
        """(names, file name of the library) of each frame, the innermost first."""
        path = tuple(frame.lookup_pc for frame in thread.frames[:_INNER])
        if path not in self._known:
            self._known[path] = [
                (partial(_names, thread, level), thread.module_name(level)) for level in range(len(path))
            ]
        return self._known[path]


def _names(thread: ThreadSnapshot, level: int) -> tuple[str, ...]:
    function = thread.stack.function(level)
    return function.demangled if function else ()
