"""``scripts/dispatch known``: compare reports and recordings that were made before with the catalogue, or show it.

Reports (schema "gdbext/1") can be judged again by entries that were written later. Whoever made the document, nothing
in it is trusted: what is not as the schema has it is a BadData.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gdbext.diagnosis.report.finding import FindingKind
from gdbext.diagnosis.samples import KnownBugsSection
from gdbext.engine.formats import parse_json, read_file
from gdbext.engine.terminal import shown_json
from gdbext.errors import AddOnError, BadData, UsageError
from gdbext.known import catalogue
from gdbext.known.signatures import KnownMatch, ProcessFacts, ThreadFacts, child_relation, matches
from gdbext.render import Style, escape
from gdbext.render.plain_json import plain
from gdbext.tools.program import Program
from gdbext.tools.table import Outcome

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator

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


SCHEMA = "gdbext/1"


def report_facts(document: object, where: str) -> ProcessFacts:
    """The facts of the report. Raises BadData for what is none, or has no threads."""
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise BadData(f"{where} is not a report on a process (schema {SCHEMA})")
    try:
        return _facts(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadData(f"{where} is not as the schema {SCHEMA} has it: {type(error).__name__}: {error}") from error


def has_native_frames(document: Mapping[str, Any]) -> bool:
    """Its threads have native frames: it was made with ``all-threads --stacks``."""
    return any("frames" in thread for thread in document["threads"])


def _facts(document: Mapping[str, Any]) -> ProcessFacts:
    target = document["target"]
    if target is None:
        raise ValueError("it has no process")
    crashed = {
        tid
        for finding in document["findings"]
        if finding["kind"] == FindingKind.CRASH.value
        for tid in finding["threads"]
    }
    versions = {"torch": _version(target.get("torch")), "python": _version(target.get("python"))}
    threads = [_thread(each, int(target["pid"]), crashed) for each in document["threads"]]
    return ProcessFacts(
        threads,
        versions.get,
        relation=partial(_relation, document),
        architecture=_facts_text(target.get("architecture") or ""),
    )


def _version(part: Mapping[str, Any] | None) -> str | None:
    found = part["version"] if part is not None else None
    return None if found in (None, "unknown") else _facts_text(found)


def _relation(document: Mapping[str, Any], word: str) -> bool | None:
    if word == "one-thread":
        return len(document["threads"]) == 1
    if word == "forked":
        missing = [(each["wait"] or {}).get("missing_workers") or {} for each in document["threads"]]
        return True if any(each.get("forked") is True for each in missing) else None
    if document["target"]["kind"] != "live" or document["command"] != "dispatch-diagnose":
        return None
    children = (document.get("children") or {}).get("children") or ()
    return child_relation(word, [_facts_text(child["command"]) for child in children])


def _thread(value: Mapping[str, Any], pid: int, crashed: set[int]) -> ThreadFacts:
    wait = value["wait"] or {}
    missing, owner = wait.get("missing_workers") or {}, wait.get("owner") or {}
    names = [_facts_text(name) for name in (value["python_name"], value["name"]) if name]
    tid = int(value["tid"])
    frames = [_native(frame) for frame in _objects(value.get("frames") or ()) if frame["kind"] == "native"]
    return ThreadFacts(
        f"{names[0]} (tid {tid})" if names else f"thread {tid}",
        _lines(value["python_frames"]),
        _facts_text(wait.get("kind") or ""),
        _facts_text(missing["pool"]) if missing.get("forked") is True else "",
        lambda: frames,
        tid=tid,
        roles=["main" if tid == pid else "other", *(["crashed"] if tid in crashed else [])],
        names=names,
        state=_facts_text(value["state"]),
        holds=[_facts_text(each["kind"]) for each in value["holds"]],
        owner=int(owner["tid"]) if owner.get("state") == "alive" else None,
        owner_gone=owner.get("state") == "gone",
        group=_facts_text((wait.get("collective") or {}).get("group") or ""),
        lost_signal=wait.get("lost_signal") is True,
        tasks=[_lines(task["frames"]) for task in value.get("tasks") or ()],
    )


def _lines(frames: Sequence[Any]) -> list[tuple[str, str]]:
    return [(_facts_text(frame["file"]), _facts_text(frame["function"])) for frame in _objects(frames)]


def _objects(values: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The frames of a list. A block of frames that repeats is there once."""
    return [each for each in values if isinstance(each, Mapping)]


def _native(frame: Mapping[str, Any]) -> tuple[NativeName, str]:
    name = _facts_text(frame["function"])
    return (lambda: (name,)), _facts_text(frame.get("module") or "")


def _facts_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not text")
    return value
