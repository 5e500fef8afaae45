"""Which dispatches are counted or traced: by thread and by key, as the user names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.probes.bpf.place_program import Filter

if TYPE_CHECKING:
    from gdbext.inspection.session import Session


def filter_of(session: Session, tid: int | None, key: str) -> Filter:
    """Of a thread, and of a key's name; None and "" for all. Raises UsageError."""
    return Filter(tid, session.dispatcher.keys.selecting(key) if key else ())
