"""Waits that the kernel alone explains: uninterruptible sleep, pages of memory that do not come, file systems that do
not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
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

_PATHS = {
    **dict.fromkeys(
        ["open", "stat", "lstat", "access", "execve", "readlink", "mkdir", "unlink", "rename", "chdir", "statfs"], 0
    ),
    **dict.fromkeys(
        ["openat", "newfstatat", "statx", "faccessat", "faccessat2", "execveat", "unlinkat", "renameat2", "readlinkat"],
        1,
    ),
}
"""System call → the number of the argument that is a path."""
_DESCRIPTORS = frozenset(
    [
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
    ]
)
"""System calls on a file whose first argument is its descriptor."""


def with_kernel_side(thread: ThreadSnapshot, state: RunState, wait: Wait | None) -> tuple[RunState, Wait | None]:
    """The state of a thread and its wait, with what its kernel side adds; unchanged without one."""
    side, process = thread.kernel_side, thread.process
    if not side or state is RunState.IDLE or process.frozen_group:
        return state, wait
    if side.call == -1:  # outside of a system call
        if not side.stands or not (side.is_page_fault or side.is_uninterruptible):
            return state, wait  # no more than the moment that any page takes
        if not side.is_out_of_memory and not side.is_page_fault:
            resource = Resource(WaitKind.IO, 0, "the kernel (uninterruptible sleep)")
        else:
            resource = Resource(WaitKind.PAGE, 0, _awaited_page(thread, side))
        return RunState.WAITING, Wait(resource, evidence=tuple(_kernel_evidence(thread, side)), kernel=side)
    if not wait or not (side.is_uninterruptible or side.is_served):
        return state, wait
    path, file_system = _file(thread)
    resource, detail = wait.resource, wait.detail
    if file_system:
        named = f" of {path}" if path else ""
        others, why = _holders(thread, side, file_system)
        resource = resource._replace(name=f"{resource.name}{named}, on {file_system.phrase}{why}")
        detail = detail.with_peer(Peer(PeerKind.PROCESS, processes=others) if others else None)
    facts = (*wait.evidence, *_kernel_evidence(thread, side))
    return state, wait._replace(resource=resource, detail=detail, evidence=facts, kernel=side)


def _awaited_page(thread: ThreadSnapshot, side: KernelSide) -> str:
    """The page for which a thread waits in a page fault, and what should provide it."""
    process = thread.process
    if side.is_out_of_memory:
        group = process.procfs.machine.group_out_of_memory()
        named = f" {group}" if group else ""
        return (
            f"memory of its control group{named}, which is at its limit, and whose OOM killer is off (oom_kill_disable)"
        )
    if side.is_userfault:
        own = "anon_inode:[userfaultfd]" in process.procfs.open_files(process.pid)
        whose = "this process has its descriptor open" if own else "another process has its descriptor"
        return f"a page of memory that userfaultfd is to give ({whose})"
    text = "a page of memory that does not come (page fault)"
    if not side.is_served and not side.is_uninterruptible:
        return text
    served = list(islice(_served_mappings(thread), 4))
    if len(served) == 1:
        path, file_system = served[0]
        return f"{text}: the only mapped file that needs a server is {path}, of {file_system.phrase}"
    names = ", ".join(path for path, _ in served[:3])
    return f"{text}: mapped files that need a server are {names}" if served else text


def _served_mappings(thread: ThreadSnapshot) -> Iterator[tuple[str, FileSystem]]:
    """(path, file system) of the mapped files whose file system needs a server."""
    paths = dict.fromkeys(each.path for each in thread.process.modules.mappings if each.path.startswith("/"))
    for path in paths:
        file_system = thread.process.procfs.machine.file_system_of(path)
        if file_system and file_system.is_served:
            yield path, file_system


def _holders(thread: ThreadSnapshot, side: KernelSide, file_system: FileSystem) -> tuple[tuple[ChildProcess, ...], str]:
    """The processes for which the call waits, and a clause on what holds it up; "" if that is the file system only."""
    if "fanotify_handle_event" in (side.channel, *side.stack) and thread.process.procfs:
        watchers = thread.process.procfs.machine.file_watchers()
        who = listed(watchers) or "a process that is not seen here"
        return watchers, f", until it is allowed by who watches files there (fanotify): {who}"
    if side.channel == "percpu_rwsem_wait":  # sb_start_write of fs/super.c
        return (), ", to which nobody may write now, as while it is frozen (fsfreeze, a snapshot)"
    return file_system.servers, ""


def _file(thread: ThreadSnapshot) -> tuple[str, FileSystem | None]:
    """The path of the call's file ("" if the wait already has it in its name), and the file system."""
    call, procfs = thread.syscall, thread.process.procfs
    if not call:
        return "", None
    if call.name in _DESCRIPTORS:
        return "", procfs.machine.file_system(call.arguments[0])
    if call.name == "mmap":
        return procfs.descriptor(call.arguments[4]), procfs.machine.file_system(call.arguments[4])
    raw = b""
    if call.name in _PATHS:
        with suppress(GdbextError):
            raw = thread.process.memory.cstring(call.arguments[_PATHS[call.name]], 4096)
    if not raw:
        return "", None
    path = procfs.absolute(raw.decode("utf-8", "replace"))
    return "" if call.name in NAMED_CALLS else path, procfs.machine.file_system_of(path)


def _kernel_evidence(thread: ThreadSnapshot, side: KernelSide) -> Iterator[str]:
    folder = f"/proc/{thread.process.pid}/task/{thread.tid}"
    yield f"{folder}/stat: state {side.state}"
    if side.channel:
        yield f"{folder}/wchan: {side.channel}"
    if side.stack:
        yield f"{folder}/stack: {side.where}"
    if side.seconds is not None:
        yield f"{folder}/sched: it ran last {side.seconds:.1f} s ago"
