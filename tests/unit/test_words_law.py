"""Words: a docstring begins with a verb or a noun, and has more than four words. The rest may only get less."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source.parsed import nodes

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

PACKAGE = Path(__file__).resolve().parents[2] / "gdbext"
BEGINNINGS = 0
"""Docstrings that begin with a preposition, a conjunction or a question word. There were 1,294."""
SHORT = 0
"""Docstrings of at most four words. There were 430."""
LEAST_WORDS = 5
FORBIDDEN = frozenset({
    "above", "after", "against", "along", "around", "as", "at", "because", "before", "behind", "below", "beside",
    "between", "by", "during", "for", "from", "how", "if", "in", "into", "of", "on", "over", "per", "since", "than",
    "through", "to", "under", "unless", "until", "what", "when", "where", "whether", "which", "while", "who", "whom",
    "whose", "why", "with", "without", "ours", "theirs",
})  # fmt: skip


def faults(source: str) -> Iterator[tuple[int, str]]:
    """(line, "beginning" or "short") of each docstring of modules, classes, functions and attributes."""
    for line, text in _docstrings(source):
        words = text.split()
        if words and re.sub(r"\W", "", words[0].lower()) in FORBIDDEN and not words[0].startswith("`"):
            yield line, "beginning"
        if len(words) < LEAST_WORDS:
            yield line, "short"


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    for statement in nodes(source):
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield statement.lineno, value.value


@pytest.mark.parametrize(("kind", "bar"), [("beginning", BEGINNINGS), ("short", SHORT)])
def test_they_only_get_less(kind: str, bar: int) -> None:
    found = [
        f"{file.relative_to(PACKAGE)}:{line}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for line, fault in faults(file.read_text())
        if fault == kind
    ]
    last = "\n".join(found[-20:])
    assert len(found) <= bar, f"{len(found)} docstrings, {bar} are allowed (CONTRIBUTING.md, Style):\n{last}"
    assert len(found) > bar - 20, f"lower the bar to {len(found)}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Of a tensor, its address."""', ["beginning"]),
        ('def f():\n    """The same."""', ["short"]),
        ('A = 1\n"""What stands there."""', ["beginning", "short"]),
        ('class A:\n    """Reads the tensors of one process."""', []),
        ('def f():\n    """``as`` is a word of Python, quoted here."""', []),
    ],
)
def test_a_planted_fault_is_found(source: str, found: list[str]) -> None:
    assert [fault for _, fault in faults(source)] == found
