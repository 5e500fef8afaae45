"""Tables that can be sorted by a click on a heading, and searched (table.js); without scripts they are just tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gdbext.model.record import Record
from gdbext.render.html.page import text

SCRIPT = "table"


class Column(Record):
    """A heading; ``is_number`` sorts by value, greatest first, and stands to the right."""

    title: str
    is_number: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The table, and a field to search it. A cell is text of any origin."""
    yield '<div class="searched"><div class="tools"><input type="search" placeholder="search the table">'
    yield '<span class="note"></span></div>'
    heads = "".join(_head(column) for column in columns)
    yield f'<table class="sortable"><thead><tr>{heads}</tr></thead><tbody>'
    for row in rows:
        yield "<tr>" + "".join(_cell(column, words) for column, words in zip(columns, row)) + "</tr>"
    yield "</tbody></table></div>"


def _head(column: Column) -> str:
    how = "number" if column.is_number else "text"
    return f'<th data-sort="{how}"{_class(column)}>{text(column.title)}</th>'


def _cell(column: Column, words: str) -> str:
    shown = text(words).replace("::", "::<wbr>")  # C++ names may be broken there
    return f"<td{_class(column)}>{shown}</td>"


def _class(column: Column) -> str:
    return ' class="number"' if column.is_number else ""
