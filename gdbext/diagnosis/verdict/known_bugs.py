"""Compares what was read of a process with the catalogue of known bugs of other projects (known/catalogue.py)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.thread_report import FindingKind
from gdbext.diagnosis.waits.snapshot import fork_evidence
from gdbext.known.catalogue import catalogue
from gdbext.known.signatures import KnownMatch, ProcessFacts, ThreadFacts, matches

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gdbext.diagnosis.report.thread_report import Finding, ThreadReport
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.known.package_versions import PackageVersions
    from gdbext.known.signatures import NativeName

_INNER = 200
"""Native frames of a thread that may be named, where an entry asks for some."""


def known_bugs(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport], findings: Sequence[Finding]
) -> tuple[KnownMatch, ...]:
    """The bugs because of which the process may hang. What of other packages cannot be used is noted as an error."""
    crashed = {tid for finding in findings if finding.kind is FindingKind.CRASH for tid in finding.threads}
    facts = [_facts(process, process.thread(thread.tid), thread, crashed) for thread in threads]
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
            return session.python.version if session.python is not None else None
        if self._packages is None:
            from gdbext.known.package_versions import PackageVersions
            from gdbext.torch.layout_choice import torch_version

            paths = {file for thread in self._threads for file, _ in thread.python}
            known = {"torch": torch_version(session.modules) or None if session.has_torch else None}
            self._packages = PackageVersions(session.modules, session.target.files, paths, known)
        return self._packages.version(package)


def _variable(session: Session, name: str) -> tuple[bool, str] | None:
    """The variable as the process was started with it; a recording has not all."""
    environ = session.target.environ()
    if not environ or (name not in environ and session.target.recorded is not None):
        return None
    return name in environ, environ.get(name, "")


def _relation(session: Session, process: ProcessSnapshot, word: str) -> bool | None:
    if word == "one-thread":
        return len(process.tids) == 1
    if word == "forked":
        return True if fork_evidence(process) else None
    return None if session.procfs is None else bool(session.procfs.children()) is (word == "children")


def _facts(
    process: ProcessSnapshot, snapshot: ThreadSnapshot | None, thread: ThreadReport, crashed: Collection[int]
) -> ThreadFacts:
    wait = thread.wait
    missing = wait.missing_workers if wait is not None else None
    owner = wait.owner if wait is not None else None
    return ThreadFacts(
        thread.label,
        [(frame.file, frame.function) for frame in thread.python],
        wait.kind.value if wait is not None else "",
        missing.pool.name if missing is not None and missing.forked else "",
        partial(_native, snapshot) if snapshot is not None else tuple,
        tid=thread.tid,
        roles=["main" if thread.tid == process.pid else "other", *(["crashed"] if thread.tid in crashed else [])],
        names=list(filter(None, (thread.python_name, thread.name))),
        state=thread.state.value,
        holds=[held.kind.value for held in thread.holds],
        owner=owner.tid if owner is not None and not owner.gone else None,
        owner_gone=owner is not None and owner.gone,
    )


def _native(thread: ThreadSnapshot) -> list[tuple[NativeName, str]]:
    levels = range(min(len(thread.frames), _INNER))
    return [(partial(_names, thread, level), thread.module_name(level)) for level in levels]


def _names(thread: ThreadSnapshot, level: int) -> tuple[str, ...]:
    function = thread.stack.function(level)
    return function.demangled if function is not None else ()
