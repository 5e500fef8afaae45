"""``dispatch-top --html``: the table as a page."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.sections.top_section import TopSection
from gdbext.model.target_report import TargetReport
from gdbext.render.html import table
from gdbext.render.html.page import Page, text
from gdbext.render.html.table import Column
from gdbext.render.text.views import top_view

_NUMBERS = ("count", "rate/s")


def render(top: TopSection, target: TargetReport | None) -> str:
    """The page."""
    of = f" of process {target.pid}" if target is not None and target.pid is not None else ""
    return Page(f"Dispatches{of}", (table.SCRIPT,)).whole(_body(top, of))


def _body(top: TopSection, of: str) -> Iterator[str]:
    yield f"<h1>Dispatches{of}</h1><p>{text(top_view.headline(top))}</p>"
    if top.lost:
        yield f'<p class="warning">{text(top_view.lost(top))}</p>'
    if not top.rows:
        yield f"<p>{text(top_view.NOTHING)}</p>"
        return
    heads, *rows = top_view.table(top.rows)
    columns = [Column(head or "odd", head in _NUMBERS) for head in heads]
    yield from table.table(columns, rows)
    if top.more:
        yield f'<p class="note">… and {top.more} more rows: --limit</p>'
