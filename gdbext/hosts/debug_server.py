"""A page of ``torch.distributed.debug``'s server (PyTorch 2.10 and later) with our diagnosis of each rank.

    from gdbext.hosts import debug_server
    debug_server.register()                                   # in each rank
    start_debug_server(handlers=[*default_handlers(), debug_server.DiagnosisHandler()])

The server asks each rank's own worker server, where a child process examines the rank. That needs the rank's GIL; the
verdict on the job does not.

PyTorch's servers listen at all addresses without authentication. The page is shown only to processes of this machine
that belong to the server's user or root. A rank's handlers do not see the connection: so they answer requests with the
job's token, which is in the job's store.

Interfaces: torch/distributed/debug/_frontend.py (DebugHandler, Route, NavLink, fetch_all) and tcpstore_client of
PyTorch 2.13; torch/csrc/distributed/c10d/control_plane/Handlers.hpp (Request, Response).
"""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import time
from html import escape
from typing import TYPE_CHECKING, Any

from torch._C import _distributed_c10d
from torch.distributed.debug import _frontend
from torch.distributed.debug._store import tcpstore_client

from gdbext.engine.targets.system.socket_table import peer_user
from gdbext.hosts import dispatch_output
from gdbext.tools.family import is_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAME = "gdbext_diagnosis"
"""The name of each rank's handler."""
_TOKEN = "gdbext_token"
"""The key in the job's store, and the parameter of a request to a rank."""
_REFUSED = (
    "The diagnosis is shown to processes of this job's user, and of root, on the server's machine. From another "
    "machine: ssh -L 25999:localhost:25999 MACHINE (or the server's own port), then http://localhost:25999/gdbext"
)
# its text is escaped already
_PAGE = """{% extends "base.html" %}
{% block header %}<h1>{% block title %}gdbext: why does it hang?{% endblock %}</h1>{% endblock %}
{% block content %}{{ body | safe }}{% endblock %}
"""


class SharedAnswer:
    """A text that ``make`` returns, called by one thread at a time; threads that waited, or ask soon after, get the
    same text."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._text, self._until = "", 0.0

    def get(self) -> str:
        """The answer of the last 5 s, else a new one."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._text = self._make()
                self._until = time.monotonic() + 5.0
            return self._text


def token() -> str:
    """The job's token, from its store; the first caller makes it. Raises RuntimeError if there is no store."""
    stored: bytes = tcpstore_client().compare_set(_TOKEN, "", secrets.token_hex(16))
    return stored.decode()


def register() -> None:
    """Have this rank's worker server answer requests that have the job's token with the rank's diagnosis."""
    shared = SharedAnswer(lambda: dispatch_output(["-p", str(os.getpid()), "--timeout", "60"]))

    def answer(request: Any, response: Any) -> None:
        """Called by the rank's worker server for each request."""
        is_allowed = hmac.compare_digest(str(request.get_param(_TOKEN)).encode(), token().encode())
        response.set_content(shared.get() if is_allowed else _REFUSED, "text/plain; charset=utf-8")
        response.set_status(200 if is_allowed else 403)

    _distributed_c10d._register_handler(_NAME, answer)


class DiagnosisHandler(_frontend.DebugHandler):  # type: ignore[misc, name-defined, unused-ignore]
    """The page /gdbext: the diagnosis of each rank; below it the verdict on the job's ranks of this machine."""

    def __init__(self) -> None:
        self._shared = SharedAnswer(
            lambda: "".join(f"<h2>{escape(title)}</h2><pre>{escape(text)}</pre>" for title, text in self._parts())
        )

    def __reduce__(self) -> tuple[Any, ...]:  # a lock does not travel to the process of the server
        return type(self), ()

    def routes(self) -> list[Any]:
        return [_frontend.Route("/gdbext", self._handle)]

    def nav_links(self) -> list[Any]:
        return [_frontend.NavLink("/gdbext", "gdbext")]

    def templates(self) -> dict[str, str]:
        return {"gdbext.html": _PAGE}

    def dump(self) -> str:
        """The page as text, for periodic dumps."""
        return "\n".join(f"=== {title} ===\n{text}" for title, text in self._parts())

    def dump_filename(self) -> str:
        return "gdbext"

    def _handle(self, request: Any) -> bytes:
        """The page, for a process of our user's or root's on this machine; else the refusal."""
        is_allowed = peer_user(request.connection) in (0, os.geteuid())
        body = self._shared.get() if is_allowed else f"<p>{escape(_REFUSED)}</p>"
        page: bytes = request.frontend.render_template("gdbext.html", body=body)
        return page

    def _parts(self) -> Iterator[tuple[str, str]]:
        """(title, text) of each rank's own answer, then of the verdict on the job."""
        addresses, answers = _frontend.fetch_all(_NAME, f"{_TOKEN}={token()}", timeout=self.fetch_timeout)
        for number, (address, answer) in enumerate(zip(addresses, answers)):
            failed = f"no answer ({answer.status_code}); the verdict on the job below does not need one"
            yield f"Rank {number}: {address.partition('?')[0]}", answer.text if answer.status_code == 200 else failed
        rank = os.getppid()  # whose child the server is
        words = ["ranks", "-p", str(rank)] if is_rank(rank) else ["-p", str(rank)]
        yield "The job, as seen on the server's machine", dispatch_output([*words, "--timeout", "60"])
