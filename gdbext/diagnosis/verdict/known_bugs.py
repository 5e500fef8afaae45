"""Compares what was read of a process with the catalogue of known bugs of other projects (known/catalogue.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gdbext.known.catalogue import KnownMatch, ThreadFacts, catalogue, matches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.errors import AddOnError

_INNER = 60
"""Native frames of a thread that are named, where an entry asks for some."""


def known_bugs(
    process: ProcessSnapshot,
    threads: Sequence[ThreadReport],
    versions: Mapping[str, str | None],
    note: Callable[[AddOnError], None],
) -> tuple[KnownMatch, ...]:
    """The bugs because of which the process may hang. ``versions``: of packages, as far as they are known; ``note`` is
    told what of another package cannot be used."""
    known = {package: text for package, text in versions.items() if text not in (None, "unknown")}
    facts = [_facts(process.thread(thread.tid), thread) for thread in threads]
    return tuple(matches(catalogue(note), facts, {name: str(version) for name, version in known.items()}))


def _facts(snapshot: ThreadSnapshot | None, thread: ThreadReport) -> ThreadFacts:
    wait = thread.wait
    missing = wait.missing_workers if wait is not None else None
    return ThreadFacts(
        thread.label,
        [(frame.file, frame.function) for frame in thread.python],
        wait.kind.value if wait is not None else "",
        missing.pool.name if missing is not None and missing.forked else "",
        partial(_native, snapshot) if snapshot is not None else tuple,
    )


def _native(thread: ThreadSnapshot) -> list[tuple[str, str]]:
    return [(_name(thread, level), thread.module_name(level)) for level in range(min(len(thread.frames), _INNER))]


def _name(thread: ThreadSnapshot, level: int) -> str:
    function = thread.stack.function(level)
    return function.demangled[0].split("(")[0] if function is not None else ""
