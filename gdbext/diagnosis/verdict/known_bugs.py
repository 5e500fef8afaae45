"""Compares a process with the known bugs: threads, versions, environment variables and relations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gdbext.diagnosis.kinds.crashed import CRASH
from gdbext.engine.targets.system.linux import HIDDEN
from gdbext.known import all_entries
from gdbext.known.package_versions import PackageVersions
from gdbext.known.signatures import KnownBugReport, ProcessFacts, ThreadFacts, child_relation, matches
from gdbext.torch.layout_choice import torch_version

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gdbext.diagnosis.report.finding import Finding
    from gdbext.diagnosis.report.thread_report import Frame, ThreadReport
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.known.signatures import NativeName


def known_bugs(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport], findings: Sequence[Finding]
) -> tuple[KnownBugReport, ...]:
    """The known bugs that may be the reason for the hang. Unusable entries of other packages are noted as errors."""
    crashed = {tid for finding in findings if finding.kind is CRASH for tid in finding.threads}
    native = _native_frames_reader()
    facts = [_thread_facts(process, native, thread, crashed) for thread in threads]
    process_facts = ProcessFacts(
        facts,
        _version_reader(session, facts),
        partial(_variable, session),
        partial(_relation, session, process),
        session.target.architecture.name,
        [module.name for module in session.modules.modules],
    )
    return tuple(matches(all_entries(lambda error: session.errors.note(error, "known bugs")), process_facts))


def _version_reader(session: Session, threads: Sequence[ThreadFacts]) -> Callable[[str], str | None]:
    """A function: package → its version, None if unknown. Nothing is read before the first question."""
    packages: list[PackageVersions] = []

    def version(package: str) -> str | None:
        """The version of a package, None if unknown; the first call finds the packages of the process."""
        if package == "python":
            return session.python.version or None
        if not packages:
            paths = {file for thread in threads for file, _ in thread.python}
            known = {"torch": torch_version(session.modules) or None if session.has_torch else None}
            packages.append(PackageVersions(session.modules, session.target.origin.files, paths, known))
        return packages[0].version(package)

    return version


def _variable(session: Session, name: str) -> tuple[bool, str] | None:
    """(True if the environment variable was set at the start, its value); None if unknown, as in a recording."""
    environ = session.target.origin.environ()
    if not environ or (name not in environ and session.target.origin.recorded) or environ.get(name) == HIDDEN:
        return None
    return name in environ, environ.get(name, "")


def _relation(session: Session, process: ProcessSnapshot, word: str) -> bool | None:
    """True if the process has the relation that an entry names (``one-thread``, ``forked``, …); None if unknown."""
    if word == "one-thread":
        return len(process.tids) == 1
    if word == "forked":
        return True if process.fork_evidence else None
    if not session.procfs:
        return None
    family = list(session.procfs.children().values())
    family += (child for children in session.procfs.grandchildren().values() for child in children)
    return child_relation(word, [child.command or child.name for child in family])


def _thread_facts(
    process: ProcessSnapshot,
    native: Callable[[ThreadSnapshot], list[tuple[NativeName, str]]],
    thread: ThreadReport,
    crashed: Collection[int],
) -> ThreadFacts:
    """What patterns of known bugs can ask about a thread. ``native``: see _native_frames_reader()."""

    def lines(frames: Sequence[Frame]) -> list[tuple[str, str]]:
        return [(frame.file, frame.function) for frame in frames]

    wait, snapshot = thread.wait, process.thread(thread.tid)
    missing = wait.detail.missing_workers if wait else None
    collective = wait.detail.collective if wait else None
    return ThreadFacts(
        thread.label,
        lines(thread.python_frames),
        wait.kind.value if wait else "",
        missing.pool.name if missing and missing.forked else "",
        partial(native, snapshot) if snapshot else tuple,
        tid=thread.tid,
        roles=["main" if thread.tid == process.pid else "other", *(["crashed"] if thread.tid in crashed else [])],
        names=list(filter(None, (thread.python_name, thread.name))),
        state=thread.state.value,
        holds=[resource.kind.value for resource in thread.holds],
        owner=next(iter(wait.owner_tids), None) if wait else None,
        owner_gone=wait is not None and wait.gone_owner is not None,
        group=collective.group if collective else "",
        lost_signal=wait is not None and wait.detail.lost_signal,
        tasks=[lines(task.frames) for task in thread.loop.tasks] if thread.loop else (),
    )


def _native_frames_reader() -> Callable[[ThreadSnapshot], list[tuple[NativeName, str]]]:
    """A function: thread → (names, library's file name) of its frames, innermost first; cached by 200 frames."""
    frames_of_path: dict[tuple[int, ...], list[tuple[NativeName, str]]] = {}

    def names(thread: ThreadSnapshot, level: int) -> tuple[str, ...]:
        function = thread.stack.function(level)
        return function.demangled if function else ()

    def native_frames(thread: ThreadSnapshot) -> list[tuple[NativeName, str]]:
        """(names, file name of the library) of the thread's frames."""
        path = tuple(frame.lookup_pc for frame in thread.frames[:200])
        if path not in frames_of_path:
            frames_of_path[path] = [
                (partial(names, thread, level), thread.module_name(level)) for level in range(len(path))
            ]
        return frames_of_path[path]

    return native_frames
