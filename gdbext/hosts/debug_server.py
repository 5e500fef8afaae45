"""A page of ``torch.distributed.debug``'s server (PyTorch 2.10 and later) with our diagnosis of each rank.

    from gdbext.hosts import debug_server
    debug_server.register()                                   # in each rank
    start_debug_server(handlers=[*default_handlers(), debug_server.DiagnosisHandler()])

The server asks each rank's own worker server, where a child process looks at the rank. That needs the rank's GIL; the
verdict on the job below comes from outside of the ranks.

Interfaces: torch/distributed/debug/_frontend.py (DebugHandler, Route, NavLink, fetch_all) of PyTorch 2.13.
"""

from __future__ import annotations

import os
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch._C import _distributed_c10d
from torch.distributed.debug import _frontend

from gdbext.tools.family import is_rank

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "gdbext_diagnosis"
"""The name of the page, and of the answer of each rank."""
_SECONDS = 60
_ROOT = str(Path(__file__).parents[2])
_CODE = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from gdbext.hosts.cli.launcher import leave, main; leave(main(sys.argv[1:]))"
)
_PAGE = """{% extends "base.html" %}
{% block header %}<h1>{% block title %}gdbext: why does it hang?{% endblock %}</h1>{% endblock %}
{% block content %}{{ body | safe }}{% endblock %}
"""


def diagnosis(*words: str) -> str:
    """The text that scripts/dispatch prints with these words, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _CODE, _ROOT, *words, "--timeout", str(_SECONDS)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout or done.stderr


def register() -> None:
    """Let this rank's worker server answer with the diagnosis of this rank. A child process looks."""

    def answer(_: Any, response: Any) -> None:
        response.set_content(diagnosis("-p", str(os.getpid())), "text/plain; charset=utf-8")
        response.set_status(200)

    _distributed_c10d._register_handler(NAME, answer)


class DiagnosisHandler(_frontend.DebugHandler):  # type: ignore[misc, name-defined, unused-ignore]
    """The page /gdbext: the diagnosis of each rank; below it the verdict on the job's ranks of this machine."""

    def routes(self) -> list[Any]:
        """The one path that is answered."""
        return [_frontend.Route("/gdbext", self._handle)]

    def nav_links(self) -> list[Any]:
        """The link in the head of each page."""
        return [_frontend.NavLink("/gdbext", "gdbext")]

    def templates(self) -> dict[str, str]:
        """The page's frame, into which text is put that is escaped already."""
        return {"gdbext.html": _PAGE}

    def dump(self) -> str:
        """The same as text, for periodic dumps."""
        return "\n".join(f"=== {title} ===\n{text}" for title, text in self._parts())

    def dump_filename(self) -> str:
        """The beginning of the name of those files."""
        return "gdbext"

    def _handle(self, request: Any) -> bytes:
        body = "".join(f"<h2>{escape(title)}</h2><pre>{escape(text)}</pre>" for title, text in self._parts())
        page: bytes = request.frontend.render_template("gdbext.html", body=body)
        return page

    def _parts(self) -> Iterator[tuple[str, str]]:
        addresses, answers = _frontend.fetch_all(NAME, "", timeout=self.fetch_timeout)
        for number, (address, answer) in enumerate(zip(addresses, answers)):
            failed = f"it does not answer ({answer.status_code}); the verdict on the job below is from outside of it"
            yield f"Rank {number}: {address}", answer.text if answer.status_code == 200 else failed
        rank = os.getppid()  # whose child the server is
        words = ["ranks", "-p", str(rank)] if is_rank(rank) else ["-p", str(rank)]
        yield "The job, as seen on the server's machine", diagnosis(*words)
