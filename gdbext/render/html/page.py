"""What all pages share: one file with its style, its scripts and its data inside, and nothing from elsewhere.

The page's own Content-Security-Policy lets it run exactly the scripts that stand here, by their hashes, and load
nothing. Text from the target goes through text(), data through embedded().
"""

from __future__ import annotations

import base64
import hashlib
import json
import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from html import escape as html_escape

from gdbext.render.text.style import escape


class Script:
    """A script of ours, from the file of that name in this folder."""

    def __init__(self, name: str) -> None:
        self.source = _resource(f"{name}.js").strip()

    @property
    def digest(self) -> str:
        """As a Content-Security-Policy names it."""
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
        """The rest."""
        scripts = "".join(f"<script>{script.source}</script>\n" for script in self._scripts)
        return f"{scripts}</body></html>\n"

    def whole(self, body: Iterable[str]) -> str:
        """A page that is made at once."""
        return self.head() + "\n".join(body) + "\n" + self.end()


def text(words: str) -> str:
    """Words, wherever they come from, as they are shown."""
    return html_escape(escape(words))


def embedded(name: str, data: object) -> str:
    """Data for a script, which finds it by this name. Numbers that JSON does not know must not be in it."""
    return f"{data_begins(name)}{as_json(data)}{DATA_ENDS}"


def data_begins(name: str) -> str:
    """Of data that is written piece by piece; DATA_ENDS follows."""
    return f'<script type="application/json" id="{name}">'


DATA_ENDS = "</script>\n"


def as_json(data: object) -> str:
    """JSON in which no tag can begin or end."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def facts(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What is known of a thing: titles and texts, in two columns."""
    yield '<dl class="facts">'
    yield from (f"<dt>{text(title)}</dt><dd>{text(words)}</dd>" for title, words in pairs if words)
    yield "</dl>"


def _resource(name: str) -> str:
    data = pkgutil.get_data(__package__, name)
    return (data or b"").decode()
