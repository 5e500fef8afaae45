"""Waits that the operating system ends: I/O, sleep, child processes, signals, an unidentified futex, and what only the
kernel explains: uninterruptible sleep, pages that do not arrive, file systems that do not answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_detail import OtherEnd, Polled, PolledFile, Sleep
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.diagnosis.waits import dead_workers
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import PYTHON_LIBRARIES, any_futex_wait
from gdbext.engine.targets.system.linux import signal_name
from gdbext.engine.targets.system.peer import Peer, PeerKind, ProcessState, listed
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.engine.process.code_reader import Syscall
    from gdbext.engine.targets.base_target import KernelSide
    from gdbext.engine.targets.system.machine import FileSystem
    from gdbext.engine.targets.system.peer import ChildProcess


_BY_DESCRIPTOR = {
    *("read", "readv", "pread64", "preadv", "preadv2", "recvfrom", "recvmsg", "recvmmsg", "accept", "accept4"),
    *("connect", "write", "writev", "pwrite64", "pwritev", "pwritev2", "sendto", "sendmsg", "sendmmsg", "sendfile"),
    *("splice", "fsync", "fdatasync", "flock", "fcntl", "io_uring_enter", "ftruncate", "fallocate"),
}
"""System calls whose first argument is the fd that they wait for."""
_WRITES = frozenset({"write", "writev", "sendto", "sendmsg", "sendmmsg"})
_PATH_ARGUMENTS = {
    **dict.fromkeys(("open", "stat", "lstat", "access", "execve", "readlink", "mkdir"), 0),
    **dict.fromkeys(("unlink", "rename", "chdir", "statfs"), 0),
    **dict.fromkeys(("openat", "newfstatat", "statx", "faccessat", "faccessat2"), 1),
    **dict.fromkeys(("execveat", "unlinkat", "renameat2", "readlinkat"), 1),
}
"""System call → the number of the argument that is a path."""
_SHOWN = 4
"""File descriptors and processes that a sentence names."""


def syscall_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that is blocked in a system call other than futex, None for any other thread."""
    call, process = thread.syscall, thread.process
    if not call or call.name == "futex":
        return None
    name = call.name
    if name in ("nanosleep", "clock_nanosleep"):
        return _sleep_wait(thread, call)
    if name == "sched_yield":
        return yielding_wait(thread)
    if name in ("wait4", "waitid"):
        return _child_wait(process, call)
    if name in ("vfork", "clone", "clone3"):
        return _vfork_wait(process, call)
    if name in ("pause", "rt_sigsuspend", "rt_sigtimedwait"):
        resource = Resource(WaitKind.SLEEP, 0, f"waits for a signal ({name})")
        return Wait(resource, timed=name == "rt_sigtimedwait" and call.arguments[2] != 0, detail=Sleep())
    if name in _BY_DESCRIPTOR:
        fd = _signed32(call.arguments[0])
        return _descriptors_wait(process, call, [fd], evidence=(f"blocked in {name}({fd}, …)",))
    if name in ("poll", "ppoll"):
        return _poll_wait(process, call)
    if name in ("select", "pselect6"):
        return _select_wait(process, call)
    if name in ("epoll_wait", "epoll_pwait", "epoll_pwait2"):
        return _epoll_wait(process, call)
    opened = ""
    if name in ("open", "openat"):  # they block on a FIFO until its other end is open (fifo(7))
        number = _PATH_ARGUMENTS[name]
        with suppress(GdbextError):
            path = process.memory.cstring(call.arguments[number], 4096).decode("utf-8", "replace")
            opened = process.procfs.absolute(path) if path else ""
            if path and process.procfs.is_named_pipe(path):
                writes = call.arguments[number + 1] & os.O_ACCMODE == os.O_WRONLY
                opened += f", a named pipe that no process has opened for {'reading' if writes else 'writing'}"
    resource = Resource(WaitKind.IO, 0, f"{name} ({opened})" if opened else name)
    return Wait(resource, evidence=(f"blocked in {name}",))


def uninterruptible_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread in an uninterruptible sleep (state D) that no system call shows; None for a short sleep (a
    page that is read, the lock of the memory map), and for a thread that was frozen meanwhile."""
    side = thread.kernel_side
    if thread.kernel_state != "D" or (side and (not side.has_slept_long or side.is_frozen)):
        return None
    resource = Resource(WaitKind.IO, 0, "the kernel (uninterruptible sleep)")
    return Wait(resource, evidence=("the kernel's state of the thread is D",))


def unknown_futex_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait in futex(2) that no recognizer identifies, with the variable's name and the calling library."""
    futex = any_futex_wait(thread.syscall)
    if not futex:
        return None
    evidence = f"the thread waits for futex {futex.address:#x} with value {futex.value:#x}; no known function called it"
    library = thread.module_name(len(thread.inner_libc_levels))
    name = ", of ".join(filter(None, (thread.process.name_at(futex.address), library)))
    external = futex.shared and thread.is_shared(futex.address)
    return Wait(
        Resource(WaitKind.FUTEX, futex.address, name), timed=futex.timed, evidence=(evidence,), external=external
    )


def repeated_sleep(thread: ThreadSnapshot) -> Wait | None:
    """The sleep of a thread that is just before or after the system call, with Python's time.sleep on its stack."""
    # In the third frame and further out, libc's function has been left, or has called something else.
    if thread.level_of(FunctionTag.SLEEPS, within=2) is None:
        return None
    return _timed_sleep(None) if thread.process.python.asked_to_sleep(thread.tid) is not None else None


def yielding_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread whose loop in Python yields the CPU at each turn: it polls something. None for others."""
    is_elsewhere = thread.syscall is not None and thread.syscall.name != "sched_yield"
    if is_elsewhere or thread.dispatch or not thread.python or not thread.process.python.yields(thread.tid):
        return None
    return Wait(Resource(WaitKind.SLEEP, 0, "yields the CPU"), timed=True, detail=Sleep(seconds=0.0))


def _sleep_wait(thread: ThreadSnapshot, call: Syscall) -> Wait:
    """The wait in nanosleep; SQLite's retry of a file lock (os_unix.c, sqlite3_busy_timeout) with the lock's holder."""
    process, procfs = thread.process, thread.process.procfs
    is_relative = call.name == "nanosleep" or not call.arguments[1] & 1  # TIMER_ABSTIME of include/uapi/linux/time.h
    seconds = _timespec(process, call.arguments[0] if call.name == "nanosleep" else call.arguments[2])
    now = None if is_relative else procfs.clock(call.arguments[0])
    library = _sleeping_library(thread)
    if is_relative:
        wait = _timed_sleep(seconds, library=library)
    elif seconds is not None and now is not None:
        wait = _timed_sleep(seconds - now, f" ({seconds_text(max(seconds - now, 0))} s left)")
    else:
        wait = _timed_sleep(process.python.asked_to_sleep(thread.tid))
    if not procfs or "sqlite" not in library:
        return wait
    locked = procfs.peers.locked_elsewhere()
    if locked:
        path, peer = locked
        polled = PolledFile(peer, looks_for=f"the lock of {path}, {peer.text}")
        return wait.with_detail(Sleep(polled, seconds=wait.detail.seconds), f"/proc/locks: {path}")
    own = procfs.peers.locked_here()
    database = f"{own}, held by another connection of this process" if own else "a database"
    return wait.with_detail(Sleep(Polled(looks_for=f"the lock of {database}"), seconds=wait.detail.seconds))


def _sleeping_library(thread: ThreadSnapshot) -> str:
    """The library that called libc to sleep, "" for the interpreter or its module ``time``."""
    level = thread.inner_libc_levels[-1] + 1 if thread.inner_libc_levels else 0
    name = thread.module_name(level)
    return "" if name.startswith((*PYTHON_LIBRARIES, "time.")) else name


def _timed_sleep(seconds: float | None, left: str = "", library: str = "") -> Wait:
    """A sleep. ``left``: `` (3 s left)`` in place of the duration; ``library``: the one that sleeps, "" for Python."""
    text = left or (f" ({seconds_text(seconds)} s)" if seconds is not None else "")
    text += f" in {library}" if library else ""
    return Wait(Resource(WaitKind.SLEEP, 0, f"sleeps{text}"), timed=True, detail=Sleep(seconds=seconds))


def seconds_text(seconds: float) -> str:
    """Seconds for people: three significant digits, but all digits before the point."""
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _timespec(process: ProcessSnapshot, pointer: int, parts: int = 10**9) -> float | None:
    """The seconds of a struct timespec or, with ``parts`` 10**6, timeval; None for a null pointer or damaged fields."""
    raw = process.memory.try_read(pointer, 16) if pointer else b""
    if not raw:
        return None
    seconds, rest = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")
    return seconds + rest / parts if seconds < 1 << 40 and rest < parts else None


def _child_wait(process: ProcessSnapshot, call: Syscall) -> Wait:
    """The wait in wait4 or waitid for one child process, or for any."""
    pid = _signed32(call.arguments[0] if call.name == "wait4" else call.arguments[1])
    is_one = call.name == "wait4" or call.arguments[0] & 0xFF == 1  # P_PID of waitid
    if pid > 0 and is_one:
        child = process.processes((pid,))[0]
        resource = Resource(WaitKind.CHILD_PROCESS, 0, f"child process {child.label}")
        return Wait(resource, detail=OtherEnd(children=(child,)))
    children = tuple(child for _, child in sorted(process.procfs.children().items()))
    names = ", ".join(child.label for child in children[:_SHOWN])
    text = f"any child process ({names})" if names else "any child process"
    return Wait(Resource(WaitKind.CHILD_PROCESS, 0, text), detail=OtherEnd(children=children))


def _vfork_wait(process: ProcessSnapshot, call: Syscall) -> Wait:
    """The wait of a vfork's parent for the child to execute a program, or to exit (vfork(2), clone(2))."""
    own = process.procfs.process(process.pid).command
    same_program = [child for _, child in sorted(process.procfs.children().items()) if child.command == own]
    last = tuple(same_program[-1:])
    name = "".join(f" {child.label}{'' if child.state else f', {child.doing},'}" for child in last)
    text = f"child process{name} to execute a program or exit ({call.name})"
    evidence = (f"blocked in {call.name}: the parent sleeps until the child no longer needs its memory",)
    return Wait(Resource(WaitKind.CHILD_PROCESS, 0, text), evidence=evidence, detail=OtherEnd(children=last))


def _descriptors_wait(
    process: ProcessSnapshot,
    call: Syscall,
    fds: Sequence[int],
    limit: str = "",
    otherwise: str = "",
    timed: bool = False,
    evidence: tuple[str, ...] = (),
) -> Wait:
    """The wait for any of these fds. ``limit``: a clause on the timeout; ``otherwise``: printed if there are none."""
    ends = [(fd, _peer(process, call, fd)) for fd in fds[:_SHOWN]]
    text = "; ".join(_descriptor_text(process, fd, peer) for fd, peer in ends) or otherwise
    resource = Resource(WaitKind.IO, 0, f"{call.name}{limit} on {text}")
    detail = _other_ends([peer for _, peer in ends])
    if call.name not in _WRITES:
        detail = detail._replace(lost=dead_workers.lost_writer(process, [peer for _, peer in ends]))
    return Wait(resource, timed=timed, evidence=evidence, detail=detail)


def _other_ends(peers: Sequence[Peer | None]) -> OtherEnd:
    """The first known peer, and the processes of all."""
    peer = next(filter(None, peers), None)
    processes = tuple(process for peer in peers if peer for process in peer.processes)
    return OtherEnd(peer, processes, watches_several=len(peers) > 1)


def _peer(process: ProcessSnapshot, call: Syscall, fd: int) -> Peer | None:
    """The other end of a file descriptor in this system call, None if unknown."""
    peers = process.procfs.peers
    if call.name in ("flock", "fcntl"):
        return peers.lock_holder(fd, call.name == "flock")
    link = process.procfs.descriptor(fd)
    if link == "anon_inode:[pidfd]":
        return peers.process_of(fd)
    if call.name == "connect":
        # struct sockaddr_un of unix(7): family AF_UNIX, path. The kernel shows an abstract name with "@" in place of
        # its NUL (net/unix/af_unix.c).
        raw = process.memory.try_read(call.arguments[1], min(call.arguments[2] & 0xFFFFFFFF, 110))
        path = raw[2:] if raw[:2] == b"\1\0" else b""
        path = b"@" + path[1:].replace(b"\0", b"@") if path[:1] == b"\0" else path.partition(b"\0")[0]
        listener = peers.connecting_to(path.decode("utf-8", "replace")) if path else None
        return listener or peers.peer_of(link, call_writes=False)
    return peers.peer_of(link, call.name in _WRITES)


def _descriptor_text(process: ProcessSnapshot, fd: int, peer: Peer | None) -> str:
    """``fd 5 (pipe:[77])``, with its other end if known, and exited children that may have been the other end."""
    text = f"fd {fd}" if fd else "standard input"
    link = process.procfs.descriptor(fd)
    if link:
        text += f" ({link})"
    if not peer:
        return text
    text += f", {peer.text}" if peer.text else ""
    if peer.is_listening:  # a zombie that failed may be the one that should have connected
        failed = {pid: child for pid, child in process.procfs.children().items() if child.has_failed}
        return text + _exited_clause({pid: f"{child.name}, {child.ending}" for pid, child in failed.items()})
    is_left = peer.own and not peer.is_queued and link.startswith(("pipe:", "socket:"))
    return f"{text}{exited_children_clause(process)}" if is_left else text


def _exited_clause(endings: Mapping[int, str]) -> str:
    """``; its child process 7 (producer, exit status 1) has exited``. ``endings``: pid → name and exit status."""
    texts = [f"{pid} ({ending.strip(', ')})" for pid, ending in sorted(endings.items())][:_SHOWN]
    return (
        f"; its child process{'es' if len(texts) > 1 else ''} {', '.join(texts)} "
        f"{'has' if len(texts) == 1 else 'have'} exited"
        if texts
        else ""
    )


def exited_children_clause(process: ProcessSnapshot, only_failed: bool = False) -> str:
    """The clause on exited children, perhaps the awaited writer. ``only_failed``: reaped ones only if they failed."""
    children = process.procfs.children().items()
    endings = {pid: f"{child.name}, {child.ending}" for pid, child in children if child.state is ProcessState.ENDED}
    for reaped in process.python.ended_processes():
        if reaped.status or not only_failed:
            how = f"killed by {signal_name(-reaped.status)}" if reaped.status < 0 else f"exit status {reaped.status}"
            endings[reaped.pid] = f"{reaped.name}, {how}"
    is_bus = any(ending.endswith("SIGBUS") for ending in endings.values())
    full = process.procfs.machine.full_file_systems() if is_bus else ()
    text = _exited_clause(endings)
    return f"{text} ({' and '.join(full)} {'is' if len(full) == 1 else 'are'} full)" if full else text


def _poll_wait(process: ProcessSnapshot, call: Syscall) -> Wait:
    """The wait in poll: an array of struct pollfd, which is fd (int), events, revents (short)."""
    address, count = call.arguments[0], min(call.arguments[1], 64)
    raw = process.memory.try_read(address, count * 8) if count else b""
    fds = [int.from_bytes(raw[at : at + 4], "little", signed=True) for at in range(0, len(raw), 8)]
    seconds: float | None
    if call.name == "poll":
        milliseconds = _signed32(call.arguments[2])
        timed, seconds = milliseconds >= 0, milliseconds / 1000
        limit = f" for at most {milliseconds} ms" if timed else ""
    else:
        timed, seconds = call.arguments[2] != 0, _timespec(process, call.arguments[2])
        limit = " with a timeout" if timed else ""
    if not fds and timed:
        return _timed_sleep(seconds)
    used = [fd for fd in fds[:_SHOWN] if fd >= 0]
    return _descriptors_wait(process, call, used, limit, otherwise="no descriptor", timed=timed)


def _select_wait(process: ProcessSnapshot, call: Syscall) -> Wait:
    """The wait in select: three bit sets (fd_set), of up to 1024 fds here."""
    fds: set[int] = set()
    size = (min(call.arguments[0], 1024) + 7) // 8
    for pointer in call.arguments[1:4]:
        raw = process.memory.try_read(pointer, size) if pointer else b""
        fds.update(fd for fd in range(len(raw) * 8) if raw[fd // 8] >> (fd % 8) & 1)
    timed = call.arguments[4] != 0
    if not fds and timed:
        return _timed_sleep(_timespec(process, call.arguments[4], 10**6 if call.name == "select" else 10**9))
    return _descriptors_wait(process, call, sorted(fds), otherwise="fds that cannot be read", timed=timed)


def _epoll_wait(process: ProcessSnapshot, call: Syscall) -> Wait:
    """The wait in epoll_wait, without fds that only this process itself can signal, as a loop's own eventfd."""
    epoll_fd = _signed32(call.arguments[0])
    timed = call.arguments[3] != 0 if call.name == "epoll_pwait2" else _signed32(call.arguments[3]) >= 0
    procfs = process.procfs
    fds = [fd for fd in procfs.peers.epoll_fds(epoll_fd) if procfs.descriptor(fd) != "anon_inode:[eventfd]"]
    watched = [(fd, peer) for fd in fds if not (peer := _peer(process, call, fd)) or not peer.own]
    if not watched:
        return _descriptors_wait(process, call, [epoll_fd], timed=timed)
    text = "; ".join(_descriptor_text(process, fd, peer) for fd, peer in watched[:_SHOWN])
    more = f" and {len(watched) - _SHOWN} more" if len(watched) > _SHOWN else ""
    resource = Resource(WaitKind.IO, 0, f"{call.name} on fd {epoll_fd}, which watches {text}{more}")
    detail = _other_ends([peer for _, peer in watched])._replace(watches_several=True)
    return Wait(resource, timed=timed, detail=detail)


def _signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


_FILE_CALLS = {
    *("read", "readv", "pread64", "preadv", "write", "writev", "pwrite64", "close", "fstat", "getdents64"),
    *("fsync", "fdatasync", "ftruncate", "fallocate", "fstatfs", "sendfile"),
}
"""System calls on a file whose first argument is its fd."""


def with_kernel_side(thread: ThreadSnapshot, state: RunState, wait: Wait | None) -> tuple[RunState, Wait | None]:
    """(state, wait) of a thread, corrected by what the kernel says of it: a page fault or an uninterruptible sleep is a
    wait, and a call on a file waits for its file system's server."""
    side, process = thread.kernel_side, thread.process
    if not side or state is RunState.IDLE or process.frozen_group:
        return state, wait
    if side.call == -1:  # outside of a system call
        if not side.has_slept_long or not (side.is_page_fault or side.is_uninterruptible):
            return state, wait  # no more than the moment that any page takes
        if not side.is_out_of_memory and not side.is_page_fault:
            resource = Resource(WaitKind.IO, 0, "the kernel (uninterruptible sleep)")
        else:
            resource = Resource(WaitKind.PAGE, 0, _awaited_page(thread, side))
        return RunState.WAITING, Wait(resource, evidence=tuple(_kernel_evidence(thread, side)), kernel=side)
    if not wait or not (side.is_uninterruptible or side.is_served):
        return state, wait
    path, file_system = _file_of_call(thread)
    resource, detail = wait.resource, wait.detail
    if file_system:
        named = f" ({path})" if path else ""
        others, why = _call_holders(thread, side, file_system)
        resource = resource._replace(name=f"{resource.name}{named}, on {file_system.phrase}{why}")
        detail = detail.with_peer(Peer(PeerKind.PROCESS, processes=others) if others else None)
    facts = (*wait.evidence, *_kernel_evidence(thread, side))
    return state, wait._replace(resource=resource, detail=detail, evidence=facts, kernel=side)


def _awaited_page(thread: ThreadSnapshot, side: KernelSide) -> str:
    """The page for which a thread waits in a page fault, and what should provide it, in words."""
    process = thread.process
    if side.is_out_of_memory:
        group = process.procfs.machine.group_out_of_memory()
        named = f" {group}" if group else ""
        return f"memory of its cgroup{named}, which is at its limit and has its OOM killer disabled (oom_kill_disable)"
    if side.is_userfault:
        own = "anon_inode:[userfaultfd]" in process.procfs.open_files(process.pid)
        whose = "this process has its fd open" if own else "another process has its fd open"
        return f"a page of memory that userfaultfd must provide ({whose})"
    text = "a page of memory that does not arrive (page fault)"
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
    mappings = thread.process.modules.mappings
    for path in dict.fromkeys(mapping.path for mapping in mappings if mapping.path.startswith("/")):
        file_system = thread.process.procfs.machine.file_system_of(path)
        if file_system and file_system.is_served:
            yield path, file_system


def _call_holders(
    thread: ThreadSnapshot, side: KernelSide, file_system: FileSystem
) -> tuple[tuple[ChildProcess, ...], str]:
    """(the processes for which the call waits, a clause on what blocks it or "" if only the file system does)."""
    if "fanotify_handle_event" in (side.channel, *side.stack) and thread.process.procfs:
        watchers = thread.process.procfs.machine.file_watchers()
        names = listed(watchers) or "a process that is not visible here"
        return watchers, f", until a fanotify listener allows it: {names}"
    if side.channel == "percpu_rwsem_wait":  # sb_start_write of fs/super.c
        return (), ", which does not accept writes now: it may be frozen (fsfreeze, a snapshot)"
    return file_system.servers, ""


def _file_of_call(thread: ThreadSnapshot) -> tuple[str, FileSystem | None]:
    """(the path of the system call's file, "" if unknown or already in the wait's name; its file system)."""
    call, procfs = thread.syscall, thread.process.procfs
    if not call:
        return "", None
    if call.name in _FILE_CALLS:
        return "", procfs.machine.file_system(call.arguments[0])
    if call.name == "mmap":
        return procfs.descriptor(call.arguments[4]), procfs.machine.file_system(call.arguments[4])
    raw = b""
    if call.name in _PATH_ARGUMENTS:
        with suppress(GdbextError):
            raw = thread.process.memory.cstring(call.arguments[_PATH_ARGUMENTS[call.name]], 4096)
    if not raw:
        return "", None
    path = procfs.absolute(raw.decode("utf-8", "replace"))
    return "" if call.name in ("open", "openat") else path, procfs.machine.file_system_of(path)


def _kernel_evidence(thread: ThreadSnapshot, side: KernelSide) -> Iterator[str]:
    """The lines of /proc that show the kernel's view of a thread."""
    folder = f"/proc/{thread.process.pid}/task/{thread.tid}"
    yield f"{folder}/stat: state {side.state}"
    if side.channel:
        yield f"{folder}/wchan: {side.channel}"
    if side.stack:
        yield f"{folder}/stack: {side.location}"
    if side.seconds is not None:
        yield f"{folder}/sched: it ran last {side.seconds:.1f} s ago"
