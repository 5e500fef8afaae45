"""``scripts/dispatch known``: compare reports and recordings that were made before with the catalogue, or show it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gdbext.diagnosis.samples import KnownBugsSection
from gdbext.engine.formats.bounded_input import parse_json, read_file
from gdbext.engine.terminal import shown_json
from gdbext.errors import AddOnError, BadData, UsageError
from gdbext.known.catalogue import catalogue
from gdbext.known.report_facts import has_native_frames, report_facts
from gdbext.known.signatures import KnownMatch, matches
from gdbext.render.plain_json import plain
from gdbext.render.style import Style, escape
from gdbext.tools.program import Program
from gdbext.tools.table import Outcome

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator, Sequence

    from gdbext.known.catalogue import KnownBug
    from gdbext.tools.program import Dispatch

_EPILOG = """\
A report is a JSON document of dispatch-diagnose or all-threads; one of all-threads --stacks has the native frames that
some entries ask for. Entries of your own: JSON files in ~/.config/gdbext/known/, or in the folders of $GDBEXT_KNOWN
(docs/known-bugs.md).
"""
_NO_FRAMES = (
    "it has no native frames: entries that ask for some were not compared (all-threads --stacks --json has them)"
)


class KnownProgram(Program):
    """The program ``scripts/dispatch known`` as a tool."""

    name = "known"
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
        document = {each.path: [plain(match.report) for match in each.matches] for each in judged}
        return Outcome(0, _json(document) if args.json else _text(_compared(judged, args.why)), told)


class _Judged:
    """A file and the bugs that fit it. ``doubt``: what was not compared."""

    def __init__(self, path: str, bugs: Sequence[KnownBug]) -> None:
        self.path = path
        self.doubt = ""
        self.matches = self._of_recording() if path.endswith(".rec") else self._of_report(bugs)

    def _of_recording(self) -> tuple[KnownMatch, ...]:
        import gdbext

        with gdbext.open(recording=self.path) as process:
            section = process.run("dispatch-diagnose").report.find_section(KnownBugsSection)
        return section.matches if section is not None else ()

    def _of_report(self, bugs: Sequence[KnownBug]) -> tuple[KnownMatch, ...]:
        try:
            document = parse_json(read_file(self.path))
        except OSError as error:
            raise BadData(f"{self.path} cannot be read: {error.strerror}") from error
        facts = report_facts(document, self.path)
        self.doubt = "" if has_native_frames(document) else _NO_FRAMES
        return tuple(matches(bugs, facts))


def _compared(judged: Sequence[_Judged], why: bool) -> Iterator[str]:
    for each in judged:
        head = f"{escape(each.path)}: " if len(judged) > 1 else ""
        for match in each.matches:
            yield f"{head}{escape(match.line)}"
            yield from (f"    {escape(text)}" for text in match.evidence if why)
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
