"""A page of docs/ with a table that has a row for each release of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def keep(page: Path, head: str, columns: Sequence[str], row: Sequence[str]) -> None:
    """Put a release's row into the page, in place of an earlier one. ``row[0]`` is the release."""
    rows: dict[str, Sequence[str]] = {}
    if page.exists():
        lines = [line for line in page.read_text().splitlines() if line.startswith("| 2.")]
        rows = {each[0]: each for each in (line.strip("| ").split(" | ") for line in lines)}
    rows[row[0]] = row
    page.write_text(head + "\n".join(_table(columns, list(rows.values()))) + "\n")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of the table, oldest release first."""
    ordered = sorted(rows, key=lambda row: [int(part) for part in row[0].partition("+")[0].split(".")])
    head, *body = (f"| {' | '.join(row)} |" for row in (columns, *ordered))
    return [head, "|---" * len(columns) + "|", *body]
