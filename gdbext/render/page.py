"""The frame and the sortable tables of all HTML pages: each is one file with its style, scripts and data.

The page's Content-Security-Policy permits only its own scripts, by their hashes, and no loading. Text from the target
must go through text(), data through embedded(). table.js sorts and searches tables.
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


class Page:
    """One page: head(), the contents, end()."""

    def __init__(self, title: str, scripts: Sequence[str] = ()) -> None:
        """``scripts``: names of the scripts in this folder that the page needs, without ".js"."""
        self._title = title
        self._scripts = [_resource(f"{name}.js").strip() for name in scripts]

    def head(self) -> str:
        """The page up to its first visible element."""
        digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in self._scripts]
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
        policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width">\n'
            f"<title>{text(self._title)}</title>\n<style>\n{_resource('page.css')}</style></head>\n<body>\n"
        )

    def end(self) -> str:
        """The end of the page, with the scripts."""
        scripts = "".join(f"<script>{script}</script>\n" for script in self._scripts)
        return f"{scripts}</body></html>\n"

    def whole(self, body: Iterable[str]) -> str:
        """The whole page, with the lines of HTML ``body``."""
        return self.head() + "\n".join(body) + "\n" + self.end()


class Origin(NamedTuple):
    """The origin of a page: the examined program, its machine, the command, gdbext's version, the time; "": unknown."""

    program: str = ""
    machine: str = ""
    command: str = ""
    version: str = ""
    made_at: float = 0.0  # seconds since 1970

    @property
    def facts(self) -> Iterator[tuple[str, str]]:
        """(title, text) pairs for facts()."""
        yield "program", self.program
        yield "machine", self.machine
        if self.made_at:
            yield "made", time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(self.made_at))
        yield "with", f"gdbext {self.version}" if self.version else ""
        yield "command", self.command


NO_ORIGIN = Origin()


def origin_now(program: str, machine: str, command: str) -> Origin:
    """The origin of a page that is made now."""
    return Origin(program, machine, command, __version__, time.time())


def verdict_box(weight: str, heading: str, summary: str) -> str:
    """The verdict as HTML; ``weight``, a class of page.css, is "bad", "hangs" or "good"."""
    return f'<p class="verdict {weight}"><strong>{text(heading)}</strong> {text(summary)}</p>'


def text(words: str) -> str:
    """Untrusted words as HTML, in a single line."""
    return html_escape(escape(words))


def embedded(name: str, data: object) -> str:
    """Data as HTML for a script, which finds it by the id ``name``. Raises ValueError for numbers that JSON lacks."""
    return f"{data_begins(name)}{as_json(data)}{DATA_ENDS}"


def data_begins(name: str) -> str:
    """The HTML before embedded data, for data that is written piece by piece; DATA_ENDS follows it."""
    return f'<script type="application/json" id="{name}">'


DATA_ENDS = "</script>\n"


def as_json(data: object) -> str:
    """JSON that is safe in HTML: without "<", and with escapes for invisible characters and bidi marks."""

    def visible(match: re.Match[str]) -> str:  # doubles the backslash of \uXXXX for these, so that the page shows it
        if len(match[0]) < len("\\u0000"):
            return match[0]
        char = json.loads(f'"{match[0]}"')
        return match[0] if char < "\u0100" or is_text(char) else f"\\{escaped(char)}"

    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    # the escapes in a JSON text; a pair of surrogates is one character
    return re.sub(r"\\(?:ud[89ab]..\\ud[c-f]..|u....|.)", visible, text) if "\\u" in text else text


def facts(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """(title, text) pairs as HTML, in two columns; without empty texts."""
    yield '<dl class="facts">'
    yield from (f"<dt>{text(title)}</dt><dd>{text(words)}</dd>" for title, words in pairs if words)
    yield "</dl>"


def _resource(name: str) -> str:
    """The text of a file in this folder."""
    data = pkgutil.get_data(__package__, name)
    return (data or b"").decode()


SCRIPT = "table"


class Column(NamedTuple):
    """A column of a table; ``is_number``: sorted by value, greatest first, and aligned to the right."""

    title: str
    is_number: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The table as HTML, with a search field. Cells may be untrusted text."""
    yield '<div class="searched"><div class="tools"><input type="search" placeholder="search the table">'
    yield '<span class="note"></span></div>'
    classes = [' class="number"' if column.is_number else "" for column in columns]
    heads = "".join(
        f'<th data-sort="{"number" if column.is_number else "text"}"{attribute}>{text(column.title)}</th>'
        for column, attribute in zip(columns, classes)
    )
    yield f'<table class="sortable"><thead><tr>{heads}</tr></thead><tbody>'
    for row in rows:
        cells = (text(words).replace("::", "::<wbr>") for words in row)  # C++ names may be broken there
        yield "<tr>" + "".join(f"<td{attribute}>{cell}</td>" for attribute, cell in zip(classes, cells)) + "</tr>"
    yield "</tbody></table></div>"
