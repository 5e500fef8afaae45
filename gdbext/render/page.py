"""The frame of all pages: one file with its style, its scripts and its data inside, and nothing from elsewhere.

The page's own Content-Security-Policy lets it run exactly the scripts that stand here, by their hashes, and load
nothing. Text from the target goes through text(), data through embedded().

Tables that can be sorted by a click on a heading, and searched (table.js); without scripts they are just tables.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pkgutil
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape as html_escape
from typing import NamedTuple

from gdbext import __version__
from gdbext.engine.terminal import escaped, is_text
from gdbext.render import escape

_ESCAPE = re.compile(r"\\(?:ud[89ab]..\\ud[c-f]..|u....|.)")
"""An escape in a JSON text; a pair of surrogates is one character."""
_SHORTEST = len("\\u0000")


class Script:
    """A script of ours, from the file of that name in this folder."""

    def __init__(self, name: str) -> None:
        self.source = _resource(f"{name}.js").strip()

    @property
    def digest(self) -> str:
        """The digest, as a Content-Security-Policy names it."""
        return f"'sha256-{base64.b64encode(hashlib.sha256(self.source.encode()).digest()).decode()}'"


class Page:
    """One page: the parts are written in the order head(), whatever the page is about, end()."""

    def __init__(self, title: str, scripts: Sequence[str] = ()) -> None:
        """``scripts``: names of the files in this folder that it needs."""
        self._title = title
        self._scripts = [Script(name) for name in scripts]

    def head(self) -> str:
        """All up to the first thing that is seen."""
        allowed = " ".join(script.digest for script in self._scripts) or "'none'"
        policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width">\n'
            f"<title>{text(self._title)}</title>\n<style>\n{_resource('page.css')}</style></head>\n<body>\n"
        )

    def end(self) -> str:
        """The end of the page behind its data."""
        scripts = "".join(f"<script>{script.source}</script>\n" for script in self._scripts)
        return f"{scripts}</body></html>\n"

    def whole(self, body: Iterable[str]) -> str:
        """A page that is made at once."""
        return self.head() + "\n".join(body) + "\n" + self.end()


class Origin(NamedTuple):
    """The facts of a page itself: which program was looked at, where, when and with what. "" is unknown."""

    program: str = ""
    machine: str = ""
    command: str = ""
    version: str = ""
    made_at: float = 0.0
    """The time as seconds since 1970."""

    @property
    def facts(self) -> Iterator[tuple[str, str]]:
        """Titles and texts for facts()."""
        yield "program", self.program
        yield "machine", self.machine
        if self.made_at:
            yield "made", time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(self.made_at))
        yield "with", f"gdbext {self.version}" if self.version else ""
        yield "command", self.command


NO_ORIGIN = Origin()


def origin_now(program: str, machine: str, command: str) -> Origin:
    """The facts of a page that is made now."""
    return Origin(program, machine, command, __version__, time.time())


def verdict_box(weight: str, heading: str, summary: str) -> str:
    """The sentence that a page is about; ``weight`` is "bad", "hangs" or "good"."""
    return f'<p class="verdict {weight}"><strong>{text(heading)}</strong> {text(summary)}</p>'


def text(words: str) -> str:
    """Words, wherever they come from, as they are shown."""
    return html_escape(escape(words))


def embedded(name: str, data: object) -> str:
    """Data for a script, which finds it by this name. Numbers that JSON does not know must not be in it."""
    return f"{data_begins(name)}{as_json(data)}{DATA_ENDS}"


def data_begins(name: str) -> str:
    """The beginning of data that is written piece by piece; DATA_ENDS follows."""
    return f'<script type="application/json" id="{name}">'


DATA_ENDS = "</script>\n"


def as_json(data: object) -> str:
    """JSON in which no tag can begin or end; its texts have escapes for what is not seen, or turns text round."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return _ESCAPE.sub(_seen, text) if "\\u" in text else text


def _seen(found: re.Match[str]) -> str:
    """The escapes of JSON as people see them: that of a mark of direction or an unseen character is shown itself;
    others stay, controls among them, which order a browser nothing."""
    if len(found[0]) < _SHORTEST:
        return found[0]
    char = json.loads(f'"{found[0]}"')
    return found[0] if char < "\u0100" or is_text(char) else f"\\{escaped(char)}"


def facts(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A list of what is known of a thing: titles and texts, in two columns."""
    yield '<dl class="facts">'
    yield from (f"<dt>{text(title)}</dt><dd>{text(words)}</dd>" for title, words in pairs if words)
    yield "</dl>"


def _resource(name: str) -> str:
    data = pkgutil.get_data(__package__, name)
    return (data or b"").decode()


SCRIPT = "table"


class Column(NamedTuple):
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
