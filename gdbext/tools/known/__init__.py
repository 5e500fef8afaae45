"""``scripts/dispatch known``: compare reports and recordings that were made before with the catalogue, or show it.

Reports (schema "gdbext/1") can be judged again by entries that were written later.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import gdbext
from gdbext.diagnosis.commands.diagnose_sections import ChildrenSection, KnownBugsSection
from gdbext.diagnosis.kinds.crashed import CRASH
from gdbext.diagnosis.report import json_report
from gdbext.diagnosis.report.thread_report import FrameKind
from gdbext.diagnosis.report.wait import OwnerThread
from gdbext.engine.formats import read_file
from gdbext.engine.terminal import shown_json
from gdbext.errors import AddOnError, BadData, UsageError
from gdbext.known import catalogue
from gdbext.known.package_versions import without_unknown
from gdbext.known.signatures import KnownBugReport, ProcessFacts, ThreadFacts, child_relation, matches
from gdbext.render import Style, escape
from gdbext.render.plain_json import plain
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator

    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.report.thread_report import Frame, ThreadReport
    from gdbext.diagnosis.report.wait import Wait
    from gdbext.known import KnownBug
    from gdbext.known.signatures import NativeName
    from gdbext.tools.program import Dispatch


_EPILOG = """\
A report is a JSON document of dispatch-diagnose or all-threads; one of all-threads --stacks also has the native
frames that some entries need. Entries of your own: JSON files in ~/.config/gdbext/known/, or in the folders of
$GDBEXT_KNOWN (docs/known-bugs.md).
"""
_NO_FRAMES = (
    "it has no native frames: entries that ask for some were not compared (all-threads --stacks --json has them)"
)


class KnownProgram(Program):
    """The program ``scripts/dispatch known`` as a tool."""

    name = "known"
    common = ("--json", "--why")
    summary = "Compare a report or a recording with the known bugs of other projects, or list these."

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the files, or what to list."""
        parser.epilog = _EPILOG
        parser.add_argument("files", nargs="*", metavar="FILE", help="a JSON report, or a recording (*.rec)")
        parser.add_argument(
            "--list", action="store_true", help="show the catalogue; with words: entries that have them"
        )

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Compare, or list. Raises GdbextError."""
        args = self.parse(argv)
        if not args.list and not args.files:
            raise UsageError("known needs a FILE, or --list")
        problems: list[AddOnError] = []
        bugs = catalogue(problems.append)
        told = "".join(f"{escape(error.what)}\n" for error in problems)
        if args.list:
            listed = [bug for bug in bugs if _has_words(bug, args.files)]
            return Outcome(0, _json(listed) if args.json else _text(_listed(listed, Style(color))), told)
        judged = [_Judged(path, bugs) for path in args.files]
        document = {each.path: each.matches for each in judged}
        return Outcome(0, _json(document) if args.json else _text(_compared(judged, args.why)), told)


class _Judged:
    """A file and the bugs that fit it. ``doubt``: what was not compared."""

    def __init__(self, path: str, bugs: Sequence[KnownBug]) -> None:
        self.path = path
        self.doubt = ""
        self.matches = self._of_recording() if path.endswith(".rec") else self._of_report(bugs)

    def _of_recording(self) -> tuple[KnownBugReport, ...]:
        with gdbext.open(recording=self.path) as process:
            section = process.run("dispatch-diagnose").report.find_section(KnownBugsSection)
        return section.reports if section else ()

    def _of_report(self, bugs: Sequence[KnownBug]) -> tuple[KnownBugReport, ...]:
        try:
            data = read_file(self.path)
        except OSError as error:
            raise BadData(f"{self.path} cannot be read: {error.strerror}") from error
        report = json_report.parse(data, self.path, ChildrenSection)
        self.doubt = "" if any(thread.frames for thread in report.threads) else _NO_FRAMES
        return tuple(matches(bugs, report_facts(report)))


def _compared(judged: Sequence[_Judged], why: bool) -> Iterator[str]:
    for each in judged:
        head = f"{escape(each.path)}: " if len(judged) > 1 else ""
        for match in each.matches:
            yield f"{head}Known: {escape(match.line)}"
            yield from (f"    {escape(text)}" for text in match.matched if why)
        if not each.matches:
            yield f"{head}no known bug fits" + (f"; {each.doubt}" if each.doubt else "")


def _listed(bugs: Sequence[KnownBug], style: Style) -> Iterator[str]:
    for bug in bugs:
        affected = ", ".join(each.text for each in bug.affected)
        yield f"{style(escape(bug.id), 'bold')}: {escape(f'{bug.title} ({affected}); {bug.cure}')}"
        yield f"    {escape(bug.url)}"


def _has_words(bug: KnownBug, words: Sequence[str]) -> bool:
    entry = json.dumps(plain(bug)).lower()
    return all(word.lower() in entry for word in words)


def _text(lines: Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _json(value: object) -> str:
    return shown_json(json.dumps(plain(value), ensure_ascii=True)) + "\n"


def report_facts(report: Report) -> ProcessFacts:
    """The facts of a report. Raises BadData: it has no process."""
    target = report.target
    if not target:
        raise BadData("the report is about no process")
    crashed = {tid for finding in report.findings if finding.kind is CRASH for tid in finding.threads}
    parts = {"torch": target.torch, "python": target.python}
    versions = without_unknown({name: part.version for name, part in parts.items() if part})
    threads = [_thread(thread, target.pid, crashed) for thread in report.threads]
    return ProcessFacts(
        threads,
        versions.get,
        relation=partial(_relation, report),
        architecture=target.architecture,
    )


def _relation(report: Report, word: str) -> bool | None:
    if word == "one-thread":
        return len(report.threads) == 1
    if word == "forked":
        return True if any(_forked_pool(thread.wait) for thread in report.threads) else None
    if not report.target or report.target.kind != "live" or report.command != "dispatch-diagnose":
        return None
    section = report.find_section(ChildrenSection)
    return child_relation(word, [child.command for child in section.children] if section else [])


def _forked_pool(wait: Wait | None) -> str:
    """The pool whose workers a fork has left behind, and that is waited for; "" where there is none."""
    missing = wait.detail.missing_workers if wait else None
    return missing.pool.name if missing and missing.forked else ""


def _thread(thread: ThreadReport, pid: int, crashed: set[int]) -> ThreadFacts:
    wait, names = thread.wait, [name for name in (thread.python_name, thread.name) if name]
    frames = [_native(frame) for frame in thread.frames if frame.kind is FrameKind.NATIVE]
    owner = wait.owner if wait else None
    collective = wait.detail.collective if wait else None
    return ThreadFacts(
        f"{names[0]} (tid {thread.tid})" if names else f"thread {thread.tid}",
        _lines(thread.python_frames),
        wait.kind.value if wait else "",
        _forked_pool(wait),
        lambda: frames,
        tid=thread.tid,
        roles=["main" if thread.tid == pid else "other", *(["crashed"] if thread.tid in crashed else [])],
        names=names,
        state=thread.state.value,
        holds=[resource.kind.value for resource in thread.holds],
        owner=owner.tid if isinstance(owner, OwnerThread) else None,
        owner_gone=bool(owner) and not isinstance(owner, OwnerThread),
        group=collective.group if collective else "",
        lost_signal=bool(wait and wait.detail.lost_signal),
        tasks=[_lines(task.frames) for task in thread.loop.tasks] if thread.loop else [],
    )


def _lines(frames: Sequence[Frame]) -> list[tuple[str, str]]:
    return [(frame.file, frame.function) for frame in frames]


def _native(frame: Frame) -> tuple[NativeName, str]:
    return (lambda: (frame.function,)), frame.module
