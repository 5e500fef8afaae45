"""What a loop that sleeps repeatedly tests in between, and threads that wait for a user to type. At a terminal's prompt
a process is idle; a question that may reach no user (no terminal, or in the background) is a wait with its text."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from gdbext.cpython.abi.assumed_names import NO_THREAD, is_below_library
from gdbext.cpython.sync.polled_objects import PolledKind
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
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.diagnosis.waits import python_waits, syscall_waits
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import joined, process_list
from gdbext.torch.distributed.python_calls import awaited_rendezvous

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.cpython.sync.polled_objects import PolledObject
    from gdbext.cpython.threads.object_text import HandledError
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.engine.targets.system.peer import ChildProcess


def polled_sleep(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The sleep of a loop with what it tests, the line of the loop, and the exception that it handles."""
    process, python, tid = thread.process, thread.process.python, thread.tid
    if not python:
        return wait
    sleep = wait.detail if isinstance(wait.detail, Sleep) else Sleep()
    error = raised_error(python.handled_error(tid) if thread.python else None)
    is_agent = any("/elastic/rendezvous/" in frame.file for frame in thread.python)
    agents = awaited_rendezvous(python.stack(tid)) if is_agent else None  # of torchrun
    if agents:
        meets = PolledMeeting(looks_for=agents.phrase)
        return wait.with_detail(Sleep(meets, handling=error, seconds=sleep.seconds))
    objects = python.polled_objects(tid) if thread.python else ()
    if objects:
        polled, children = _polled_objects(thread, objects)
        return wait.with_detail(Sleep(polled, handling=error, seconds=sleep.seconds, children=children))
    # What the loop tests is not known: any child of the process may be it.
    line = line_of_loop(thread, wait)
    caught = raised_error(python.caught_error(tid) if line and not error else None)
    pool = python_waits.lost_pool(thread) if line else None
    exited, children = "", ()
    if line and process.procfs and not pool:
        exited = syscall_waits.exited_children_clause(process, only_failed=True)
        children = tuple(child for _, child in sorted(process.procfs.children().items()))
    return wait.with_detail(Sleep(pool or sleep.polled, line, error, caught, sleep.seconds, children, exited))


def _polled_objects(thread: ThreadSnapshot, objects: Sequence[PolledObject]) -> tuple[Polled, tuple[ChildProcess, ...]]:
    """(up to four ``objects`` that a loop tests, of the kind that tells most; processes that may change them)."""
    process, python = thread.process, thread.process.python
    kinds = (PolledKind.PROCESS, PolledKind.FILE, PolledKind.THREAD, PolledKind.OBJECT, PolledKind.FLAG)
    kind = next((kind for kind in kinds if any(polled.polled_as is kind for polled in objects)), None)
    tested = [polled for polled in objects if polled.polled_as is kind][:4]
    if kind is PolledKind.PROCESS:
        children = process.processes(dict.fromkeys(polled.pid for polled in tested))
        return Polled(looks_for=f"the {process_list(children)}"), children
    if kind is PolledKind.OBJECT:
        names = joined([f"{each.name} ({each.kind.value if each.kind else ''} {each.address:#x})" for each in tested])
        owed = python.polled_results(tested)
        if owed and owed.pids:
            workers = process.processes(owed.pids)
            return Polled(looks_for=f"{names}, which the worker {process_list(workers)} should complete"), workers
        tids = (owed.owner_tid, *owed.awaited, *owed.exhausted) if owed else ()
        owing = dict.fromkeys(tid for tid in tids if tid is not None and tid != thread.tid)
        users = (tid for polled in tested for tid in python.users_of(polled.address) if tid != thread.tid)
        expects = tuple(owing or dict.fromkeys(users))
        lost_pool = None if expects else python_waits.lost_pool(thread)
        return lost_pool or Polled(looks_for=names, expects=expects), ()
    if kind is PolledKind.FILE:
        return _polled_files(process, [polled.path for polled in tested]), ()
    if kind is PolledKind.THREAD:
        tids_of_idents = (python.tid_of_ident(polled.ident) for polled in tested)
        expects = tuple(tid for tid in tids_of_idents if tid is not None)
        text = f"{tested[0].name}, a thread that has exited"
        if expects:
            text = f"the thread{'s' if len(expects) > 1 else ''} {joined(list(map(str, expects)))}"
        return Polled(looks_for=text, expects=expects), ()
    if kind is PolledKind.FLAG:
        lost = python_waits.lost_setter(thread, [polled.name for polled in tested])
        flags = Polled(None, lost, joined([f"{polled.name} (which is {polled.value})" for polled in tested]))
        return flags if lost else python_waits.lost_pool(thread) or flags, ()
    return Polled(), ()


def _polled_files(process: ProcessSnapshot, paths: Sequence[str]) -> PolledFile:
    """The files that a loop tests, with the processes that have locked them."""
    procfs, holder, texts = process.procfs, None, []
    for path in paths:
        text, lock = f"the file {procfs.absolute(path)}", procfs.file_lock(path)
        if lock:
            holder = holder or lock
            text += f", {lock.text}"
        elif (exists := procfs.file_exists(path)) is not None:
            unused = ", and no process has it open" if exists and procfs.has_open(path) is False else ""
            text += f" (which exists{unused})" if exists else " (which does not exist)"
        texts.append(text)
    return PolledFile(holder, looks_for=joined(texts))


_REPEATED = (
    *(WaitKind.SLEEP, WaitKind.JOIN, WaitKind.PYTHON_LOCK, WaitKind.QUEUE),
    *(WaitKind.CONDVAR, WaitKind.SEMAPHORE, WaitKind.BARRIER),
)
"""Kinds of waits that Python code can repeat in a loop."""


def line_of_loop(thread: ThreadSnapshot, wait: Wait) -> str:
    """The line of the loop that repeats a timed wait of Python code; "" if there is none, or the wait is a sleep of
    more than 2 s: such a loop does something from time to time rather than wait for something."""
    if not thread.python or not wait.timed or wait.kind not in _REPEATED:
        return ""
    python = thread.process.python
    seconds = python.asked_to_sleep(thread.tid) if wait.kind is WaitKind.SLEEP else 0
    seconds = wait.detail.seconds if seconds is None else seconds
    return python.waiting_loop(thread.tid) if seconds is not None and seconds <= 2 else ""


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
"""Errors of system calls (errno(3)). Not EAGAIN: a socket without data gives it, too."""


def raised_error(error: HandledError | None) -> RaisedError:
    """The exception, with the resource that the program could not get."""
    return RaisedError(error.text, refused_by(error)) if error else NO_ERROR


def refused_by(error: HandledError) -> Refused | None:
    """The resource that a program was refused, by the exception that it handles; None for another exception."""
    if "MemoryError" in error.classes:
        return Refused.MEMORY
    if "RuntimeError" in error.classes:
        return Refused.TASKS if error.message == NO_THREAD else None
    if "OSError" not in error.classes:
        return None
    by_class = Refused.PEER if {"ConnectionError", "gaierror"}.intersection(error.classes) else None
    return _REFUSED.get(error.errno or 0, by_class)


def is_at_prompt(thread: ThreadSnapshot, wait: Wait) -> bool:
    """True if the thread waits for input at a prompt, outside of the dispatcher: no code of the user's runs."""
    if wait.kind is not WaitKind.IO or thread.dispatch:
        return False
    if thread.level_of(FunctionTag.PROMPT, within=24) is not None:
        return True
    # Prompts written in Python: that of Python 3.13, IPython's, and a notebook's kernel between two cells. Only an
    # event loop may be between the wait and them (the last one is tornado's).
    prompts = ("/_pyrepl/", "/prompt_toolkit/", "/ipykernel/kernelapp.py")
    asyncio_loops = ("/asyncio/base_events.py", "/asyncio/runners.py", "/asyncio/unix_events.py", "/asyncio.py")
    for frame in thread.python:
        if any(part in frame.file for part in prompts):
            return True
        if not frame.file.endswith(("/selectors.py", *asyncio_loops)):
            break
    return _read_descriptor(thread) == 0


def _read_descriptor(thread: ThreadSnapshot) -> int | None:
    """The file descriptor that the thread reads, None if it is in another system call."""
    call = thread.syscall
    return call.arguments[0] & 0xFFFFFFFF if call and call.name == "read" else None


def with_question(thread: ThreadSnapshot, wait: Wait) -> tuple[Wait, bool | None]:
    """(the wait with what the program asks, whether a user can answer it). The latter is True if the process is in the
    foreground of the terminal, None if it asks nothing, or that cannot be determined."""
    call, procfs = thread.syscall, thread.process.procfs
    # A line is awaited in read, by the line editor in select.
    calls = {"read", "select", "pselect6", "poll", "ppoll", "readv"}
    if wait.kind is not WaitKind.IO or not call or call.name not in calls:
        return wait, None
    question = thread.process.python.question(thread.tid)
    if not question:
        return wait, None
    frame = question.frame
    place = f"{frame.file}:{frame.line or '?'} ({frame.function})"
    if question.is_debugger:
        text = f"the debugger {question.by} has stopped the program at {place}, and waits for a command"
    else:
        users = (each for each in thread.python if not is_below_library(each.file) and each.file[:1] != "<")
        user = next(users, None)
        is_caller = user is not None and (user.file, user.line) != (frame.file, frame.line)
        by = f", called from {user.place}" if user and is_caller else ""
        text = f"{question.by} {f'asks {question.words!r}' if question.words else 'waits for a line'} at {place}{by}"
    resource = Resource(wait.kind, wait.address, f"{wait.name}; {text}")
    asked = wait._replace(resource=resource, detail=Prompt(wait.detail.peer, wait.detail.children))
    link = procfs.descriptor(_read_descriptor(thread) or 0)
    if not link:
        return asked, None
    terminal = procfs.machine.terminal()
    is_own = link in ("/dev/tty", terminal) or not terminal.startswith("/dev/")
    is_terminal = link.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    return asked, is_terminal and bool(terminal) and is_own and procfs.machine.has_foreground()
