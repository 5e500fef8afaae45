"""``scripts/dispatch known``: checks saved reports and recordings against the known-bug catalog, or lists it.

Reports (schema "gdbext/1") can be compared again with entries that were written later.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import gdbext
from gdbext.diagnosis.commands.diagnose_sections import ChildrenSection, KnownBugsSection
from gdbext.diagnosis.kinds.crashed import CRASH
from gdbext.diagnosis.report import Report, json_report
from gdbext.diagnosis.report.thread_report import Frame, FrameKind, ThreadReport
from gdbext.diagnosis.report.wait import OwnerThread, Wait
from gdbext.engine.formats import read_file
from gdbext.engine.terminal import shown_json
from gdbext.errors import AddOnError, BadData, UsageError
from gdbext.known import KnownBug, all_entries
from gdbext.known.package_versions import without_unknown
from gdbext.known.signatures import KnownBugReport, ProcessFacts, ThreadFacts, child_relation, matches
from gdbext.render import Style, escape
from gdbext.render.plain_json import plain
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from gdbext.known.signatures import NativeName
    from gdbext.tools.program import Dispatch


_EPILOG = """\
A report is the JSON document of dispatch-diagnose or all-threads. With all-threads --stacks, it also has the native
frames that some entries need. Your own entries are JSON files in ~/.config/gdbext/known/ or in the folders of
$GDBEXT_KNOWN (docs/known-bugs.md).
"""
_NO_FRAMES = (
    "the report has no native frames, so entries that need them were not compared (use all-threads --stacks --json)"
)


class KnownProgram(Program):
    """The program ``scripts/dispatch known`` as a tool."""

    common = ("--json", "--why")

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog, add = _EPILOG, parser.add_argument
        add("files", nargs="*", metavar="FILE", help="a JSON report or a recording (*.rec); with --list: words")
        add("--list", action="store_true", help="list the catalog, or the entries that contain all the words")

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Compare, or list. Raises GdbextError."""
        args = self.parse(argv)
        if not args.list and not args.files:
            raise UsageError("known needs a FILE, or --list")
        problems: list[AddOnError] = []
        bugs = all_entries(problems.append)
        errors = "".join(f"{escape(error.what)}\n" for error in problems)
        document: object
        lines: list[str] = []
        if args.list:
            style, words = Style(color), [word.lower() for word in args.files]
            document = listed = [bug for bug in bugs if all(word in json.dumps(plain(bug)).lower() for word in words)]
            for bug in listed:
                affected = " or ".join(project.text for project in bug.affected)
                title = escape(f"{bug.title} ({affected}); {bug.cure}")
                lines += [f"{style(escape(bug.id), 'bold')}: {title}", f"    {escape(bug.url)}"]
        else:
            compared = {path: _compare(path, bugs) for path in args.files}
            document = {path: reports for path, (reports, _) in compared.items()}
            for path, (reports, doubt) in compared.items():
                head = f"{escape(path)}: " if len(args.files) > 1 else ""
                for report in reports:
                    lines.append(f"{head}Known bug {escape(report.line)}")
                    lines += [f"    {escape(text)}" for text in report.matched if args.why]
                if not reports:
                    lines.append(f"{head}no known bug matches" + (f"; {doubt}" if doubt else ""))
        if args.json:
            return Outcome(0, shown_json(json.dumps(plain(document), ensure_ascii=True)) + "\n", errors)
        return Outcome(0, "".join(f"{line}\n" for line in lines), errors)


def _compare(path: str, bugs: Sequence[KnownBug]) -> tuple[tuple[KnownBugReport, ...], str]:
    """(the known bugs that match the report or recording ``path``, what was not compared or ""). Raises GdbextError."""
    if path.endswith(".rec"):
        with gdbext.open(recording=path) as process:
            section = process.run("dispatch-diagnose").report.find_section(KnownBugsSection)
        return (section.reports if section else ()), ""
    try:
        data = read_file(path)
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}") from error
    report = json_report.parse(data, path, ChildrenSection)
    doubt = "" if any(thread.frames for thread in report.threads) else _NO_FRAMES
    return tuple(matches(bugs, report_facts(report))), doubt


def report_facts(report: Report) -> ProcessFacts:
    """What entries are compared with, taken from a report. Raises BadData if it is not about a process."""
    target = report.target
    if not target:
        raise BadData("the report is about no process")
    is_live = target.kind == "live" and report.command == "dispatch-diagnose"

    def relation(word: str) -> bool | None:
        """True if the process has the relation that an entry names ("one-thread", "forked"); None if unknown."""
        if word == "one-thread":
            return len(report.threads) == 1
        if word == "forked":
            return True if any(_forked_pool(thread.wait) for thread in report.threads) else None
        if not is_live:
            return None
        section = report.find_section(ChildrenSection)
        return child_relation(word, [child.command for child in section.children] if section else [])

    crashed = {tid for finding in report.findings if finding.kind is CRASH for tid in finding.threads}
    parts = {"torch": target.torch, "python": target.python}
    versions = without_unknown({name: part.version for name, part in parts.items() if part})
    threads = [_thread_facts(thread, target.pid, crashed) for thread in report.threads]
    return ProcessFacts(threads, versions.get, relation=relation, architecture=target.architecture)


def _forked_pool(wait: Wait | None) -> str:
    """The name of the pool that the thread waits for although its workers did not survive a fork; "" if none."""
    missing = wait.detail.missing_workers if wait else None
    return missing.pool.name if missing and missing.forked else ""


def _thread_facts(thread: ThreadReport, pid: int, crashed: set[int]) -> ThreadFacts:
    """The facts of a thread of process ``pid``; ``crashed``: tids of the threads that crashed."""

    def lines(frames: Sequence[Frame]) -> list[tuple[str, str]]:  # (file, function)
        return [(frame.file, frame.function) for frame in frames]

    def native_frames() -> list[tuple[NativeName, str]]:
        native = (frame for frame in thread.frames if frame.kind is FrameKind.NATIVE)
        return [(partial(tuple, [frame.function]), frame.module) for frame in native]

    wait, names = thread.wait, [name for name in (thread.python_name, thread.name) if name]
    owner = wait.owner if wait else None
    collective = wait.detail.collective if wait else None
    return ThreadFacts(
        f"{names[0]} (tid {thread.tid})" if names else f"thread {thread.tid}",
        lines(thread.python_frames),
        wait.kind.value if wait else "",
        _forked_pool(wait),
        native_frames,
        tid=thread.tid,
        roles=["main" if thread.tid == pid else "other", *(["crashed"] if thread.tid in crashed else [])],
        names=names,
        state=thread.state.value,
        holds=[resource.kind.value for resource in thread.holds],
        owner=owner.tid if isinstance(owner, OwnerThread) else None,
        owner_gone=bool(owner) and not isinstance(owner, OwnerThread),
        group=collective.group if collective else "",
        lost_signal=bool(wait and wait.detail.lost_signal),
        tasks=[lines(task.frames) for task in thread.loop.tasks] if thread.loop else [],
    )
