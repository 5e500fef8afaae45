"""Suggestions: each command of ours that a sentence of ours names exists, and takes the options that stand with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.source.suggested_commands import in_source, refusal, suggested

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

ROOT = Path(__file__).resolve().parents[2]

FORMS = re.compile("scripts/dispatch COMMAND --help|gdbext --init-path")
"""A form with any command in it, and an option that comes before everything else."""


def refusals(text: str) -> list[str]:
    """What would be refused of the commands in a text."""
    return [f"{' '.join(words)}: {why}" for words in suggested(text) if (why := refusal(words))]


def test_every_suggestion_is_a_command() -> None:
    found, count = [], 0
    for file in sorted((ROOT / "gdbext").rglob("*.py")):
        for line, text in in_source(file.read_text()):
            count += sum(1 for _ in suggested(text))
            found += [f"{file.relative_to(ROOT)}:{line}: {each}" for each in refusals(text)]
    assert found == []
    assert count > 150


def test_reports_suggest_commands() -> None:
    reports = [*(ROOT / "tests" / "golden").glob("*.txt"), ROOT / "README.md"]
    assert [each for file in reports for each in refusals(file.read_text()) if not FORMS.match(each)] == []


@pytest.mark.parametrize(
    "text",
    [
        "try scripts/dispatch -p PID dispatch-bt --localz",
        "dispatch-trace OP --engine breakpoint",
        "look again: scripts/dispatch nonsense -p 7",
        "scripts/dispatch -r FILE dispatch-trace mm",
        "scripts/no_such.py --index",
        "dispatch ranks --nonsense 1 says it",
        "dispatch-nothing shows it",
    ],
)
def test_a_planted_suggestion_is_found(text: str) -> None:
    assert refusals(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "dispatch-bt --native shows the same stack; or install lldb-22",
        "dispatch-info names the files that could not be used",
        "find the process with: dispatch ps",
        "look at it with a dispatch table of 3 entries",
    ],
)
def test_what_is_allowed(text: str) -> None:
    assert refusals(text) == []
