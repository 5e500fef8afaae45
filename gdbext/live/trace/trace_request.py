"""What the user asked dispatch-trace for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TraceRequest:
    """``everything``: all calls of all operators. ``returns``: also stop where dispatches end.

    ``boxed``: also stop in ``Dispatcher::callBoxed``, which all operators share. ``limit`` dispatches and ``depth``
    levels, 0 for any number; ``tid`` one thread only; ``key``: by probes only dispatches to
    that key. The trace begins with the first dispatch of ``since``.
    """

    patterns: Sequence[str]
    everything: bool = False
    verbose: bool = False
    returns: bool = False
    boxed: bool = False
    limit: int = 0
    depth: int = 0
    tid: int | None = None
    since: str = ""
    key: str = ""
