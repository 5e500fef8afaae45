"""The objects that a loop waits for which sleeps for a short time again and again.

It waits for what it looks at in between. Where that is proven it is followed; else the line of the loop is named, and
any other thread or child may be who has to act.

Threads that wait for somebody to type: at the prompt of an interpreter, or because the program has asked something.

Who sits at a terminal is answered by nobody else, and a process that waits for him is idle. A question on a standard
input that is no terminal, or on a terminal whose foreground another process group has, may be seen by nobody: then the
program waits, and the report says what it asks.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from gdbext.cpython.abi.assumed_names import NO_THREAD, is_below_library
from gdbext.cpython.sync.polled_objects import PolledKind
from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_detail import (
    NO_ERROR,
    Polled,
    PolledFile,
    PolledMeeting,
    Prompt,
    RaisedError,
    Refused,
    Sleep,
)
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits import python_waits, syscall_waits
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.engine.targets.system.peer import ChildProcess, listed
from gdbext.torch.distributed.python_calls import awaited_rendezvous

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.cpython.sync.polled_objects import PolledObject, Question
    from gdbext.cpython.threads.object_text import HandledError
    from gdbext.diagnosis.report.thread_report import Frame
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
    from gdbext.engine.targets.system.peer import Peer

_SHOWN = 4
"""Things looked at that a sentence names."""


def polled_sleep(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The sleep of a loop with what it looks at, the line of the loop, and the exception that it handles."""
    python = thread.process.python
    if not python:
        return wait
    known = wait.detail if isinstance(wait.detail, Sleep) else Sleep()
    error = raised(python.handled_error(thread.tid) if thread.python else None)
    agents = _meeting(thread)
    found = python.polled_objects(thread.tid) if thread.python and not agents else ()
    if not found and not agents:
        return wait.with_detail(_loop_of(thread, wait, known, error))
    polled, processes = (PolledMeeting(looks_for=agents), ()) if agents else _polled(thread, found)
    return wait.with_detail(Sleep(polled, handling=error, seconds=known.seconds, children=processes))


def _polled(thread: ThreadSnapshot, found: Sequence[PolledObject]) -> tuple[Polled, tuple[ChildProcess, ...]]:
    """What is looked at, and the processes that may change it."""
    telling = (PolledKind.PROCESS, PolledKind.FILE, PolledKind.THREAD, PolledKind.OBJECT, PolledKind.FLAG)
    kind = next((kind for kind in telling if any(each.polled_as is kind for each in found)), None)
    seen = [each for each in found if each.polled_as is kind][:_SHOWN]
    if kind is PolledKind.PROCESS:
        return _processes(thread, seen)
    if kind is PolledKind.OBJECT:
        return _objects(thread, seen)
    if kind is PolledKind.FILE:
        return _files(thread, [each.path for each in seen]), ()
    if kind is PolledKind.THREAD:
        found_tids = map(thread.process.python.tid_of_ident, (each.ident for each in seen))
        tids = tuple(tid for tid in found_tids if tid is not None)
        ended = "" if tids else f"{seen[0].name}, a thread that has ended"
        return Polled(looks_for=ended or f"the thread{_s(tids)} {_listed(tids)}", expects=tids), ()
    if kind is PolledKind.FLAG:
        lost = python_waits.lost_setter(thread, [each.name for each in seen])
        looks = Polled(None, lost, _joined([f"{each.name} (which is {each.value})" for each in seen]))
        return looks if lost else python_waits.lost_pool(thread) or looks, ()
    return Polled(), ()


_REPEATED = (
    WaitKind.QUEUE,
    WaitKind.CONDVAR,
    WaitKind.SEMAPHORE,
    WaitKind.BARRIER,
    WaitKind.PYTHON_LOCK,
    WaitKind.JOIN,
)
"""Kinds of waits, besides sleeps, that Python code can repeat."""
_SHORT = 2.0
"""Seconds of a sleep up to which a loop rather looks for something than does something from time to time."""


def line_of_loop(thread: ThreadSnapshot, wait: Wait) -> str:
    """The line of the loop that repeats a timed wait; "" where there is none, or the wait is a long one."""
    python = thread.process.python
    is_either = wait.kind is WaitKind.SLEEP or wait.kind in _REPEATED
    if not thread.python or not wait.timed or not is_either:
        return ""
    asked = python.asked_to_sleep(thread.tid) if wait.kind is WaitKind.SLEEP else 0
    asked = wait.detail.seconds if asked is None else asked
    return python.waiting_loop(thread.tid) if asked is not None and asked <= _SHORT else ""


def _loop_of(thread: ThreadSnapshot, wait: Wait, known: Sleep, error: RaisedError) -> Sleep:
    """The sleep of a loop that looks at what nobody knows: a child of the process may be it."""
    line, procfs = line_of_loop(thread, wait), thread.process.procfs
    caught = raised(thread.process.python.caught_error(thread.tid) if line and not error else None)
    pool = python_waits.lost_pool(thread) if line else None
    aside, children = "", ()  # type: str, tuple[ChildProcess, ...]
    if line and procfs and not pool:
        aside = syscall_waits.ended_children(thread.process, only_failed=True)
        children = tuple(each for _, each in sorted(procfs.children().items()))
    return Sleep(pool or known.polled, line, error, caught, known.seconds, children, aside)


_REFUSED = {
    errno.ENOSPC: Refused.SPACE,
    errno.EDQUOT: Refused.SPACE,
    errno.EMFILE: Refused.DESCRIPTORS,
    errno.ENFILE: Refused.DESCRIPTORS,
    errno.ENOMEM: Refused.MEMORY,
    errno.ECONNREFUSED: Refused.PEER,
    errno.EHOSTUNREACH: Refused.PEER,
    errno.ENETUNREACH: Refused.PEER,
    errno.ETIMEDOUT: Refused.PEER,
}
"""Errors of system calls (errno(3)). EAGAIN is none of them: it is that of a socket which has nothing yet, too."""
_OF_PEERS = frozenset(("ConnectionError", "gaierror"))


def raised(error: HandledError | None) -> RaisedError:
    """The exception, with the thing that the program could not have."""
    return RaisedError(error.text, refused_by(error)) if error else NO_ERROR


def refused_by(error: HandledError) -> Refused | None:
    """The thing that a program could not have, by the exception that it handles; None where that does not say so."""
    if "MemoryError" in error.classes:
        return Refused.MEMORY
    if "RuntimeError" in error.classes:
        return Refused.TASKS if error.message == NO_THREAD else None
    if "OSError" not in error.classes:
        return None
    found = _REFUSED.get(error.errno or 0)
    return found or (Refused.PEER if _OF_PEERS.intersection(error.classes) else None)


def _meeting(thread: ThreadSnapshot) -> str:
    """The rendezvous that an agent of torchrun waits in between two looks; "" for any other sleep."""
    if not any("/elastic/rendezvous/" in frame.file for frame in thread.python):
        return ""
    found = awaited_rendezvous(thread.process.python.stack(thread.tid))
    return found.phrase if found else ""


def _processes(thread: ThreadSnapshot, seen: Sequence[PolledObject]) -> tuple[Polled, tuple[ChildProcess, ...]]:
    known = thread.process.procfs.children()
    pids = dict.fromkeys(each.pid for each in seen)
    children = tuple(known.get(pid, ChildProcess(pid)) for pid in pids)
    plural = "es" if len(children) > 1 else ""
    return Polled(looks_for=f"the process{plural} {listed(children)}"), children


def _objects(thread: ThreadSnapshot, seen: Sequence[PolledObject]) -> tuple[Polled, tuple[ChildProcess, ...]]:
    python = thread.process.python
    names = _joined([f"{each.name} ({each.kind.value if each.kind else ''} {each.address:#x})" for each in seen])
    owed = python.polled_results(seen)
    if owed and owed.pids:
        known = thread.process.procfs.children()
        workers = tuple(known.get(pid, ChildProcess(pid)) for pid in owed.pids)
        text = f"{names}, which the worker process{'es' if len(workers) > 1 else ''} {listed(workers)} owe"
        return Polled(looks_for=text + ("s" if len(workers) == 1 else "")), workers
    theirs = (owed.owner_tid, *owed.awaited, *owed.exhausted) if owed else ()
    owing = dict.fromkeys(tid for tid in theirs if tid is not None and tid != thread.tid)
    users = dict.fromkeys(tid for each in seen for tid in python.users_of(each.address) if tid != thread.tid)
    looks = Polled(looks_for=names, expects=tuple(owing or users))
    return looks if looks.expects else python_waits.lost_pool(thread) or looks, ()


def _files(thread: ThreadSnapshot, paths: Sequence[str]) -> PolledFile:
    locks = {path: thread.process.procfs.file_lock(path) for path in paths}
    texts = (_file(thread, path, locks[path]) for path in paths)
    peer = next((peer for peer in locks.values() if peer), None)
    return PolledFile(peer, looks_for=_joined(list(texts)))


def _file(thread: ThreadSnapshot, path: str, lock: Peer | None) -> str:
    procfs = thread.process.procfs
    shown = procfs.absolute(path)
    if lock:
        return f"the file {shown}, {lock.text}"
    exists = procfs.file_exists(path)
    unused = ", and no process has it open" if exists and procfs.has_open(path) is False else ""
    told = "" if exists is None else f" (which exists{unused})" if exists else " (which does not exist)"
    return f"the file {shown}{told}"


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
    return call.arguments[0] & 0xFFFFFFFF if call and call.name == "read" else None


def with_question(thread: ThreadSnapshot, wait: Wait) -> tuple[Wait, bool | None]:
    """The wait with what the program asks, and whether somebody can answer it: at a terminal that the process has for
    itself. None where it asks nothing, or nobody can tell."""
    if wait.kind is not WaitKind.IO or not thread.syscall or thread.syscall.name not in _CALLS:
        return wait, None
    found = thread.process.python.question(thread.tid)
    if not found:
        return wait, None
    text = _text(found, thread)
    resource = Resource(wait.kind, wait.address, f"{wait.name}; {text}")
    asked = Prompt(wait.detail.peer, wait.detail.children)
    return wait._replace(resource=resource, detail=asked), _is_heard(thread)


def _text(found: Question, thread: ThreadSnapshot) -> str:
    place = found.frame
    where = f"{place.file}:{place.line or '?'} ({place.function})"
    if found.is_debugger:
        return f"the debugger {found.by} has stopped the program at {where}, and waits for a command"
    user = next((frame for frame in thread.python if _is_users(frame)), None)
    inner = user is None or (user.file, user.line) == (place.file, place.line)
    by = f", called from {user.place}" if user and not inner else ""
    asks = f"asks {found.words!r}" if found.words else "waits for a line"
    return f"{found.by} {asks} at {where}{by}"


def _is_users(frame: Frame) -> bool:
    return not is_below_library(frame.file) and frame.file[:1] != "<"


def _is_heard(thread: ThreadSnapshot) -> bool | None:
    procfs = thread.process.procfs
    descriptor = _descriptor(thread)
    link = procfs.descriptor(descriptor or 0)
    if not link:
        return None
    own = procfs.machine.terminal()
    is_own = link in ("/dev/tty", own) or not own.startswith("/dev/")
    return link.startswith(_TERMINALS) and bool(own) and is_own and procfs.machine.has_foreground()
