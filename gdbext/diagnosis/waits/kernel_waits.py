"""Waits that the kernel alone explains: uninterruptible sleep, pages of memory that do not come, file systems that do
not answer, and the parent of a vfork.

What is added here to a thread's state comes from its KernelSide; a thread without one is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.syscall_waits import NAMED_CALLS
from gdbext.engine.targets.system.peer import Peer, PeerKind, listed
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
    from gdbext.engine.targets.base_target import KernelSide
    from gdbext.engine.targets.system.machine import FileSystem
    from gdbext.engine.targets.system.peer import ChildProcess

_ALLOWED = "fanotify_handle_event"
"""The function in which a call waits for who watches files to allow it (fs/notify/fanotify/fanotify.c)."""
_FROZEN = "percpu_rwsem_wait"
"""The function in which a write waits, while its file system is frozen, for that to end (fs/super.c:
sb_start_write)."""
_USERFAULT = "anon_inode:[userfaultfd]"
_PATHS = {
    "open": 0,
    "stat": 0,
    "lstat": 0,
    "access": 0,
    "execve": 0,
    "readlink": 0,
    "mkdir": 0,
    "unlink": 0,
    "rename": 0,
    "chdir": 0,
    "statfs": 0,
    "openat": 1,
    "newfstatat": 1,
    "statx": 1,
    "faccessat": 1,
    "faccessat2": 1,
    "execveat": 1,
    "unlinkat": 1,
    "renameat2": 1,
    "readlinkat": 1,
}
"""System call → the number of the argument that is a path."""
_DESCRIPTORS = frozenset(
    (
        "read",
        "readv",
        "pread64",
        "preadv",
        "write",
        "writev",
        "pwrite64",
        "close",
        "fstat",
        "getdents64",
        "fsync",
        "fdatasync",
        "ftruncate",
        "fallocate",
        "fstatfs",
        "sendfile",
    )
)
"""System calls on a file whose first argument is its descriptor."""
_MMAP_FD = 4
_MAX_PATH = 4096
_MAX_FILES = 3


def explained(thread: ThreadSnapshot, state: RunState, wait: Wait | None) -> tuple[RunState, Wait | None]:
    """The state of a thread and its wait, with what its kernel side says."""
    side = thread.kernel_side
    if not side or state is RunState.IDLE or thread.process.frozen_group:
        return state, wait
    if side.call == -1:
        return (RunState.WAITING, _outside_of_calls(thread, side)) if _waits(side) else (state, wait)
    if not wait or not (side.is_uninterruptible or side.is_served):
        return state, wait
    return state, _in_call(thread, side, wait)


def _waits(side: KernelSide) -> bool:
    """It sleeps outside of a system call, and not for the moment that any page takes."""
    return side.stands and (side.is_page_fault or side.is_uninterruptible)


def _outside_of_calls(thread: ThreadSnapshot, side: KernelSide) -> Wait:
    if side.is_out_of_memory:
        what = _out_of_memory(thread)
    elif not side.is_page_fault:
        resource = Resource(WaitKind.IO, 0, "the kernel (uninterruptible sleep)")
        return Wait(resource, evidence=tuple(evidence(thread, side)), kernel=side)
    else:
        what = _userfault(thread) if side.is_userfault else _of_files(thread, side)
    return Wait(Resource(WaitKind.PAGE, 0, what), evidence=tuple(evidence(thread, side)), kernel=side)


def _out_of_memory(thread: ThreadSnapshot) -> str:
    group = thread.process.procfs.machine.group_out_of_memory()
    named = f" {group}" if group else ""
    return f"memory of its control group{named}, which is at its limit, and whose OOM killer is off (oom_kill_disable)"


def _userfault(thread: ThreadSnapshot) -> str:
    """Say whether this process has the descriptor by which the faults are handled."""
    own = _USERFAULT in thread.process.procfs.open_files(thread.process.pid)
    whose = "this process has its descriptor open" if own else "another process has its descriptor"
    return f"a page of memory that userfaultfd is to give ({whose})"


def _of_files(thread: ThreadSnapshot, side: KernelSide) -> str:
    text = "a page of memory that does not come (page fault)"
    if not side.is_served and not side.is_uninterruptible:
        return text
    found = list(_served_mappings(thread))[: _MAX_FILES + 1]
    if len(found) == 1:
        path, file_system = found[0]
        return f"{text}: the only mapped file that needs a server is {path}, of {file_system.phrase}"
    names = ", ".join(path for path, _ in found[:_MAX_FILES])
    return f"{text}: mapped files that need a server are {names}" if found else text


def _served_mappings(thread: ThreadSnapshot) -> Iterator[tuple[str, FileSystem]]:
    """The mapped files of file systems that need a server."""
    seen: set[str] = set()
    for mapping in thread.process.modules.mappings:
        if mapping.path.startswith("/") and mapping.path not in seen:
            seen.add(mapping.path)
            file_system = thread.process.procfs.machine.file_system_of(mapping.path)
            if file_system and file_system.is_served:
                yield mapping.path, file_system


def _in_call(thread: ThreadSnapshot, side: KernelSide, wait: Wait) -> Wait:
    """The wait with the file and the file system of its call, where the call has one that needs a server."""
    path, file_system = _file(thread)
    resource, detail = wait.resource, wait.detail
    if file_system:
        named = f" of {path}" if path else ""
        others, why = _who_holds(thread, side, file_system)
        name = f"{resource.name}{named}, on {file_system.phrase}{why}"
        resource = Resource(resource.kind, resource.address, name, resource.variable)
        detail = detail.with_peer(Peer(PeerKind.PROCESS, processes=others) if others else None)
    return wait._replace(
        resource=resource, detail=detail, evidence=(*wait.evidence, *evidence(thread, side)), kernel=side
    )


def _who_holds(
    thread: ThreadSnapshot, side: KernelSide, file_system: FileSystem
) -> tuple[tuple[ChildProcess, ...], str]:
    """The processes that the call waits for, and a clause on what holds it up; "" where nothing but the file system."""
    if _ALLOWED in (side.channel, *side.stack) and thread.process.procfs:
        found = thread.process.procfs.machine.file_watchers()
        who = listed(found) or "a process that is not seen here"
        return found, f", until it is allowed by who watches files there (fanotify): {who}"
    if side.channel == _FROZEN:
        return (), ", to which nobody may write now, as while it is frozen (fsfreeze, a snapshot)"
    return file_system.servers, ""


def _file(thread: ThreadSnapshot) -> tuple[str, FileSystem | None]:
    """The path of the call's file where nothing has named it yet, and the file system."""
    call, procfs = thread.syscall, thread.process.procfs
    if not call:
        return "", None
    if call.name in _DESCRIPTORS:
        return "", procfs.machine.file_system(call.arguments[0])
    if call.name == "mmap":
        return procfs.descriptor(call.arguments[_MMAP_FD]), procfs.machine.file_system(call.arguments[_MMAP_FD])
    argument = _PATHS.get(call.name)
    try:
        raw = thread.process.memory.cstring(call.arguments[argument], _MAX_PATH) if argument is not None else b""
    except GdbextError:
        raw = b""
    if not raw:
        return "", None
    path = procfs.absolute(raw.decode("utf-8", "replace"))
    return "" if call.name in NAMED_CALLS else path, procfs.machine.file_system_of(path)


def evidence(thread: ThreadSnapshot, side: KernelSide) -> Iterator[str]:
    """The facts of the kernel, a line each."""
    folder = f"/proc/{thread.process.pid}/task/{thread.tid}"
    yield f"{folder}/stat: state {side.state}"
    if side.channel:
        yield f"{folder}/wchan: {side.channel}"
    if side.stack:
        yield f"{folder}/stack: {side.where}"
    if side.seconds is not None:
        yield f"{folder}/sched: it ran last {side.seconds:.1f} s ago"
