"""Loops that sleep and look: what they look at, from the variables of the Python frame that sleeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.cpython.sync.at_hand import AtHand, Look
from gdbext.model.threads.child_process import ChildProcess, listed
from gdbext.model.threads.wait import Wait

if TYPE_CHECKING:
    from gdbext.model.threads.peer import Peer
    from gdbext.waits.readers import PythonView
    from gdbext.waits.snapshot import ThreadSnapshot

_SHOWN = 4
"""Things looked at that a sentence names."""
_ORDER = (Look.PROCESS, Look.FILE, Look.THREAD, Look.OBJECT, Look.FLAG)
"""What tells most comes first."""


def explained(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The sleep with what it is between; itself where that is not known."""
    python = thread.process.python
    found = python.looked_at(thread.tid) if python is not None and thread.python else ()
    look = next((look for look in _ORDER if any(each.look is look for each in found)), None)
    if python is None or look is None:
        return wait
    seen = [each for each in found if each.look is look][:_SHOWN]
    if look is Look.PROCESS:
        return _processes(thread, wait, seen)
    if look is Look.THREAD:
        tids = tuple(tid for tid in (python.tid_of_ident(each.ident) for each in seen) if tid is not None)
        ended = "" if tids else f"{seen[0].name}, a thread that has ended"
        return wait._replace(looks_for=ended or f"the thread{_s(tids)} {_listed(tids)}", expects=tids)
    if look is Look.OBJECT:
        return _objects(thread, python, wait, seen)
    if look is Look.FLAG:
        return wait._replace(looks_for=_joined([f"{each.name} (which is {each.value})" for each in seen]))
    return _files(thread, wait, [each.path for each in seen])


def _processes(thread: ThreadSnapshot, wait: Wait, seen: Sequence[AtHand]) -> Wait:
    known = thread.process.outside.children() if thread.process.outside is not None else {}
    pids = dict.fromkeys(each.pid for each in seen)
    children = tuple(known.get(pid, ChildProcess(pid)) for pid in pids)
    plural = "es" if len(children) > 1 else ""
    return wait._replace(looks_for=f"the process{plural} {listed(children)}", children=children)


def _objects(thread: ThreadSnapshot, python: PythonView, wait: Wait, seen: Sequence[AtHand]) -> Wait:
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
