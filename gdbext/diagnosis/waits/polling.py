"""Loops that sleep and look: what they look at, from the variables of the Python frame that sleeps.

Whether the interpreter waits for its user: at a prompt, or for standard input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
from gdbext.engine.targets.system.peer import ChildProcess, listed

if TYPE_CHECKING:
    from gdbext.cpython.sync.polled_objects import PolledObject
    from gdbext.diagnosis.waits.readers import PythonView
    from gdbext.engine.targets.system.peer import Peer

_SHOWN = 4
"""Things looked at that a sentence names."""


def explained(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The sleep with what it is between; itself where that is not known."""
    python = thread.process.python
    found = python.polled_objects(thread.tid) if python is not None and thread.python else ()
    if python is None or not found:
        return wait
    from gdbext.cpython.sync.polled_objects import PolledKind

    telling = (PolledKind.PROCESS, PolledKind.FILE, PolledKind.THREAD, PolledKind.OBJECT, PolledKind.FLAG)
    kind = next((kind for kind in telling if any(each.polled_as is kind for each in found)), None)
    if kind is None:
        return wait
    seen = [each for each in found if each.polled_as is kind][:_SHOWN]
    if kind is PolledKind.PROCESS:
        return _processes(thread, wait, seen)
    if kind is PolledKind.THREAD:
        tids = tuple(tid for tid in (python.tid_of_ident(each.ident) for each in seen) if tid is not None)
        ended = "" if tids else f"{seen[0].name}, a thread that has ended"
        return wait._replace(looks_for=ended or f"the thread{_s(tids)} {_listed(tids)}", expects=tids)
    if kind is PolledKind.OBJECT:
        return _objects(thread, python, wait, seen)
    if kind is PolledKind.FLAG:
        return wait._replace(looks_for=_joined([f"{each.name} (which is {each.value})" for each in seen]))
    return _files(thread, wait, [each.path for each in seen])


def _processes(thread: ThreadSnapshot, wait: Wait, seen: Sequence[PolledObject]) -> Wait:
    known = thread.process.outside.children() if thread.process.outside is not None else {}
    pids = dict.fromkeys(each.pid for each in seen)
    children = tuple(known.get(pid, ChildProcess(pid)) for pid in pids)
    plural = "es" if len(children) > 1 else ""
    return wait._replace(looks_for=f"the process{plural} {listed(children)}", children=children)


def _objects(thread: ThreadSnapshot, python: PythonView, wait: Wait, seen: Sequence[PolledObject]) -> Wait:
    names = [f"{each.name} ({each.kind.value if each.kind is not None else ''} {each.address:#x})" for each in seen]
    users = dict.fromkeys(tid for each in seen for tid in python.users_of(each.address) if tid != thread.tid)
    return wait._replace(looks_for=_joined(names), expects=tuple(users))


def _files(thread: ThreadSnapshot, wait: Wait, paths: Sequence[str]) -> Wait:
    outside = thread.process.outside
    locks = {path: outside.file_lock(path) for path in paths} if outside is not None else {}
    texts = (_file(thread, path, locks.get(path)) for path in paths)
    peer = next((peer for peer in locks.values() if peer is not None), None)
    return wait._replace(looks_for=_joined(list(texts)), looks_outside=True, peer=peer)


def _file(thread: ThreadSnapshot, path: str, lock: Peer | None) -> str:
    outside = thread.process.outside
    shown = outside.absolute(path) if outside is not None else path
    if lock is not None:
        return f"the file {shown}, {lock.text}"
    exists = outside.file_exists(path) if outside is not None else None
    return f"the file {shown}" + ("" if exists is None else " (which exists)" if exists else " (which does not exist)")


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _listed(tids: Sequence[int]) -> str:
    return _joined([str(tid) for tid in tids])


def _s(tids: Sequence[int]) -> str:
    return "s" if len(tids) > 1 else ""


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
    """True if nothing but an event loop is between the wait and the prompt's code: no user code runs."""
    for frame in thread.python:
        if any(part in frame.file for part in _PROMPTS):
            return True
        if not frame.file.endswith(_LOOPS):
            return False
    return False
