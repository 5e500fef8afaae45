"""What reaches a terminal, whatever the names, paths and texts of the examined process hold."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdbext.diagnosis.report import json_report, render_text
from gdbext.engine import terminal
from gdbext.hosts.cli import launcher
from gdbext.render import Style, escape
from gdbext.tools import running
from gdbext.tools.outcome import Outcome
from gdbext.torch.measure import measurement
from support.programs.work import lines_run
from support.recorded.recordings import Replay
from tests.unit.diagnosis.test_golden import MADE, RECORDED

OURS = re.compile(r"\x1b\[(?:[0-4]|3[0-7]|9[0-7])m")
"""The colours that a view can ask for."""
KINDS = (
    "\x00\x07\x1b[2J\r\n\t\x7f\x9b2J\x85\u2028\u200b\u200f\u061c\u202e\u2066\ufeff\ufe0f\u115f\u3164\ufdd5\ue000"
    "\udc9b\ud800\U000e0041\U000e0100\u00ad\u034f\u00a0"
)
HOSTILE = "a" + KINDS + "z"
codes = st.lists(st.integers(0, 0x24F) | st.integers(0, 0x10FFFF), max_size=20)
any_texts = codes.map(lambda each: "".join(map(chr, each)))
"""st.text() would sort all of Unicode for a second first."""
hostile_texts = st.text(st.sampled_from(KINDS + "aé中"), max_size=20)


def is_harmless(text: str) -> bool:
    """Only text, newlines, tabs and our colours."""
    rest = OURS.sub("", text)
    return all(char in "\n\t" or terminal.is_text(char) for char in rest)


@given(hostile_texts)
def test_nothing_but_text_passes_the_door(text: str) -> None:
    assert is_harmless(terminal.shown(text))
    assert terminal.is_text(escape(text)) if len(escape(text)) == 1 else is_harmless(escape(text))
    assert not set(escape(text)) & set("\n\t\x1b")


@given(any_texts)
def test_what_is_text_stays(text: str) -> None:
    if all(terminal.is_text(char) or char in "\n\t" for char in text):
        assert terminal.shown(text) == text
    assert terminal.shown(terminal.shown(text)) == terminal.shown(text) or "\x1b" in terminal.shown(text)


def test_what_people_write_is_text() -> None:
    text = "naïve Ωμέγα עברית العربية 中文 🙂 ├── → … ±µ"
    assert terminal.shown(text) == escape(text) == text


def test_a_colour_is_a_colour_only_at_the_door() -> None:
    styled = Style(color=True)(escape("\x1b[2J\ufdd5"), "bold", "red")
    assert "\x1b" not in styled
    assert terminal.shown(styled) == "\x1b[1m\x1b[31m\\x1b[2J\\ufdd5\x1b[0m"


@pytest.mark.parametrize("char", ["\x1b", "x", "\u202e", "中"])
def test_a_long_text_costs_at_most_a_few_lines_a_character(char: str) -> None:
    plain, other = f"{char}{chr(0xFDD5)}" * 400_000, "".join(map(chr, range(0x20000)))
    assert lines_run(lambda: terminal.shown(plain)) < 100
    assert lines_run(lambda: terminal.shown(other)) < 4 * len(other)


WHOLE = (
    *("diagnose-why-gil-mutex", "collectives-gloo-mismatch", "bt-why-meta-mm", "bt-native-nested-normal"),
    *("threads-stacks-gil-mutex", "tls-meta-mm", "info-meta-mm", "op-meta-mm", "lookup-meta-mm", "keyset-meta-mm"),
)
"""Of the recorded ones: each view once, with all that it can show."""
KEYWORDS = frozenset({"command", "view"})
"""Fields of a report that choose how it is shown."""


@cache
def recorded_report(name: str) -> Any:
    """The report that a golden text of a recorded process shows."""
    recording, command, *words = RECORDED[name]
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "render_text", lambda report, color=False: found.append(report) or str(color))
        Replay(recording).text(command, *words)
    return found[0]


def fields(value: Any) -> Iterator[str]:
    """Class and field of all texts in a report."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        for each in value:
            yield from fields(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from fields(each)
    else:
        for name, each in members(value):
            if name not in KEYWORDS and is_text(each):
                yield f"{type(value).__name__}.{name}"
            else:
                yield from fields(each)


def is_text(value: Any) -> bool:
    """A text of a report, or some of them; words of ours are enumerations."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return bool(value) and all(map(is_text, value))
    return isinstance(value, str) and not isinstance(value, Enum)


def members(value: Any) -> list[tuple[str, Any]]:
    names = getattr(value, "_fields", ())
    if is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value) if each.init]
    return [(name, getattr(value, name)) for name in names]


def poisoned(value: Any, field: str, text: str) -> Any:
    """The report with that text in all fields of that class and name."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(poisoned(each, field, text) for each in value)
    if isinstance(value, dict):
        return {name: poisoned(each, field, text) for name, each in value.items()}
    changed = {name: _changed(value, name, each, field, text) for name, each in members(value)}
    if not changed or isinstance(value, Enum):
        return value
    return value._replace(**changed) if hasattr(value, "_fields") else replace(value, **changed)


def _changed(value: Any, name: str, each: Any, field: str, text: str) -> Any:
    if field != f"{type(value).__name__}.{name}":
        return poisoned(each, field, text)
    return (text,) * len(each) if isinstance(each, tuple) else text


def written(report: Any, capfd: pytest.CaptureFixture[str]) -> str:
    """What the real writer makes of it on a terminal."""
    capfd.readouterr()
    launcher.deliver(Outcome(0, render_text(report, color=True)))
    return capfd.readouterr().out


@pytest.mark.parametrize("name", [*MADE, *WHOLE])
def test_every_view_of_a_hostile_process(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each field in turn; a field that is a word of ours, whose view knows no other, is passed over."""
    report = MADE[name] if name in MADE else recorded_report(name)
    tried = 0
    for field in sorted(set(fields(report))):
        try:
            plain = render_text(poisoned(report, field, "plain"), color=True)
            hostile = poisoned(report, field, HOSTILE)
            text = written(hostile, capfd)
        except (KeyError, ValueError, StopIteration, AttributeError):
            continue
        tried += 1
        assert is_harmless(text), field
        assert text.count("\n") == plain.count("\n"), f"{field}: a name makes lines of its own"
        document = json_report.render(hostile)
        assert terminal.shown(document) == document
    assert tried or not set(fields(report))


def test_json_passes_the_door_as_it_is() -> None:
    report = poisoned(MADE["breaks-deleted"], "ErrorReport.what", HOSTILE)
    text = json_report.render(report)
    assert terminal.shown(text) == text
    assert json.loads(text)["errors"][0]["what"] == HOSTILE


def test_a_progress_line_with_a_path(tmp_path: Path) -> None:
    """Of a measurement of the layout, which names torch's folder."""
    ours, theirs = os.openpty()
    progress = measurement._MeasuringLine(tmp_path / "\x1b[31mevil\x07\u202e", theirs)
    progress.show("compiling \x1b]0;title\x07")
    said = os.read(ours, 4096).decode()
    os.close(theirs)
    os.close(ours)
    assert (said[0], said[-3:], is_harmless(said[1:-3])) == ("\r", "\x1b[K", True)


def test_an_error_of_a_hostile_file(capfd: pytest.CaptureFixture[str]) -> None:
    launcher.deliver(Outcome(1, "", f"cannot read {HOSTILE}"))
    assert is_harmless(capfd.readouterr().err)


@given(st.text(alphabet="ab  \n", max_size=200), st.integers(4, 40))
def test_wrapped_lines_keep_their_words(text: str, width: int) -> None:
    broken = terminal.wrapped(text, width)
    assert broken.split() == text.split()
    assert all(len(line) <= width or len(line.split()) < 2 for line in broken.split("\n") if line.strip())


def test_a_line_is_broken_at_a_word_and_goes_on_indented() -> None:
    assert terminal.wrapped("  one two three\nfour\n", 10) == "  one two\n    three\nfour\n"
    assert terminal.wrapped("/a/path/that/is/long:7 (step)\n", 10) == "/a/path/that/is/long:7\n  (step)\n"
