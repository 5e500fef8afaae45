"""Suggestions: each command of ours that a sentence of ours names exists, and takes the options that stand with it."""

from __future__ import annotations

import re

import pytest

from support.source.parsed import PACKAGE, breaches
from support.source.suggested_commands import in_source, refusal, suggested

pytestmark = pytest.mark.xdist_group("laws")

FORMS = re.compile("scripts/dispatch COMMAND --help|gdbext --init-path")
"""A form with any command in it, and an option that comes before everything else."""


def refusals(text: str) -> list[str]:
    """What would be refused of the commands in a text."""
    return [f"{' '.join(words)}: {why}" for words in suggested(text) if (why := refusal(words))]


def test_every_suggestion_is_a_command() -> None:
    count = 0

    def refused(_: str, source: str) -> list[tuple[int, str]]:
        nonlocal count
        texts = list(in_source(source))
        count += sum(1 for _, text in texts for _ in suggested(text))
        return [(line, each) for line, text in texts for each in refusals(text)]

    assert breaches(refused) == []
    assert count > 150


def test_reports_suggest_commands() -> None:
    reports = [*(PACKAGE.parent / "tests" / "golden").glob("*.txt"), PACKAGE.parent / "README.md"]
    assert [each for file in reports for each in refusals(file.read_text()) if not FORMS.match(each)] == []
