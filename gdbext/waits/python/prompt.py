"""Whether the interpreter waits for its user: at a prompt, or for standard input."""

from __future__ import annotations

from gdbext.model.threads.wait import Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.snapshot import ThreadSnapshot

_PROMPTS = ("/_pyrepl/", "/prompt_toolkit/", "/ipykernel/kernelapp.py")
"""Sources of prompts written in Python: that of Python 3.13, IPython's, and a notebook's kernel between two cells."""
_LOOPS = ("/selectors.py", "/asyncio/base_events.py", "/asyncio/runners.py", "/asyncio/unix_events.py", "/asyncio.py")
"""Event loops that such a prompt may wait in (the last one is tornado's)."""
_NEAR = 24
"""Frames between the kernel and the function that reads the interpreter's prompt."""


def is_at_prompt(thread: ThreadSnapshot, wait: Wait) -> bool:
    """The thread waits for input, and outside of the dispatcher: no program of anybody's runs."""
    if wait.kind is not WaitKind.IO or thread.dispatch:
        return False
    if thread.first(FunctionTag.PROMPT, within=_NEAR) is not None or _is_python_prompt(thread):
        return True
    return thread.syscall is not None and thread.syscall.name == "read" and thread.syscall.arguments[0] == 0


def _is_python_prompt(thread: ThreadSnapshot) -> bool:
    """Between the wait and the prompt's code is nothing but an event loop: no user code runs."""
    for frame in thread.python:
        if any(part in frame.file for part in _PROMPTS):
            return True
        if not frame.file.endswith(_LOOPS):
            return False
    return False
