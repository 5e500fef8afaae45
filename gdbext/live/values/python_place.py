"""The line of Python that a stopped thread is at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.live.run_control import RunControl


def python_place(control: RunControl, tid: int) -> tuple[str, int | None]:
    """(file, line) of the thread's innermost Python frame, outside of torch's own package if there is one.

    "" and None without Python frames: in a thread of the autograd engine.
    """
    try:
        table = control.session().python_threads
        frames = table.frames(tid) if table is not None else []
    except GdbextError:
        return "", None
    own = [frame for frame in frames if "/torch/" not in frame.file]
    found = (own or frames)[:1]
    return (found[0].file, found[0].line) if found else ("", None)
