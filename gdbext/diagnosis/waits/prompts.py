"""Threads that wait for somebody to type: at the prompt of an interpreter, or because the program has asked something.

Who sits at a terminal is answered by nobody else, and a process that waits for him is idle. A question on a standard
input that is no terminal, or on a terminal whose foreground another process group has, may be seen by nobody: then the
program waits, and the report says what it asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi.assumed_names import is_below_library
from gdbext.diagnosis.report.thread_report import Frame
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag

if TYPE_CHECKING:
    from gdbext.cpython.sync.polled_objects import Question
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot

_PROMPTS = ("/_pyrepl/", "/prompt_toolkit/", "/ipykernel/kernelapp.py")
"""Sources of prompts written in Python: that of Python 3.13, IPython's, and a notebook's kernel between two cells."""
_LOOPS = ("/selectors.py", "/asyncio/base_events.py", "/asyncio/runners.py", "/asyncio/unix_events.py", "/asyncio.py")
"""Event loops that such a prompt may wait in (the last one is tornado's)."""
_NEAR = 24
"""Frames between the kernel and the function that reads the interpreter's prompt."""
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_CALLS = frozenset({"read", "select", "pselect6", "poll", "ppoll", "readv"})
"""System calls in which a line is awaited; the line editor waits in select."""


def is_at_prompt(thread: ThreadSnapshot, wait: Wait) -> bool:
    """The thread waits for input, and outside of the dispatcher: no program of anybody's runs."""
    if wait.kind is not WaitKind.IO or thread.dispatch:
        return False
    if thread.first(FunctionTag.PROMPT, within=_NEAR) is not None or _is_python_prompt(thread):
        return True
    return _descriptor(thread) == 0


def _is_python_prompt(thread: ThreadSnapshot) -> bool:
    """True if nothing but an event loop is between the wait and the prompt's code: no user code runs."""
    for frame in thread.python:
        if any(part in frame.file for part in _PROMPTS):
            return True
        if not frame.file.endswith(_LOOPS):
            return False
    return False


def _descriptor(thread: ThreadSnapshot) -> int | None:
    call = thread.syscall
    return call.arguments[0] & 0xFFFFFFFF if call is not None and call.name == "read" else None


def with_question(thread: ThreadSnapshot, wait: Wait) -> tuple[Wait, bool | None]:
    """The wait with what the program asks, and whether somebody can answer it: at a terminal that the process has for
    itself. None where it asks nothing, or nobody can tell."""
    python = thread.process.python
    if wait.kind is not WaitKind.IO or python is None or thread.syscall is None or thread.syscall.name not in _CALLS:
        return wait, None
    found = python.question(thread.tid)
    if found is None:
        return wait, None
    text = _text(found, thread)
    resource = wait.resource._replace(name=f"{wait.resource.name}; {text}")
    return wait._replace(resource=resource, question=text), _is_heard(thread)


def _text(found: Question, thread: ThreadSnapshot) -> str:
    place = found.frame
    where = f"{place.file}:{place.line or '?'} ({place.function})"
    if found.is_debugger:
        return f"the debugger {found.by} has stopped the program at {where}, and waits for a command"
    user = next((frame for frame in thread.python if _is_users(frame)), None)
    inner = user is None or (user.file, user.line) == (place.file, place.line)
    by = f", called from {user.place}" if user is not None and not inner else ""
    asks = f"asks {found.words!r}" if found.words else "waits for a line"
    return f"{found.by} {asks} at {where}{by}"


def _is_users(frame: Frame) -> bool:
    return not is_below_library(frame.file) and frame.file[:1] != "<"


def _is_heard(thread: ThreadSnapshot) -> bool | None:
    outside = thread.process.outside
    descriptor = _descriptor(thread)
    link = outside.descriptor(descriptor or 0) if outside is not None else ""
    if outside is None or not link:
        return None
    own = outside.machine.terminal()
    is_own = link in ("/dev/tty", own) or not own.startswith("/dev/")
    return link.startswith(_TERMINALS) and bool(own) and is_own and outside.machine.has_foreground()
