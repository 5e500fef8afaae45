"""Waits that the system ends: input and output, sleep, child processes, signals, a futex that nobody else knows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_detail import OtherEnd, Polled, PolledFile, Sleep
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import any_futex_wait
from gdbext.engine.targets.system.linux import signal_name
from gdbext.engine.targets.system.peer import ChildProcess, Peer, ProcessState
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.engine.process.code_reader import Syscall

_BY_DESCRIPTOR = frozenset(
    (
        "read",
        "readv",
        "pread64",
        "recvfrom",
        "recvmsg",
        "recvmmsg",
        "accept",
        "accept4",
        "write",
        "writev",
        "sendto",
        "sendmsg",
        "sendmmsg",
        "sendfile",
        "connect",
        "splice",
        "fsync",
        "fdatasync",
        "flock",
        "fcntl",
        "io_uring_enter",
        "pwrite64",
        "preadv",
        "pwritev",
        "preadv2",
        "pwritev2",
        "ftruncate",
        "fallocate",
    )
)
"""Calls whose first argument is the descriptor they wait for."""
_LOCKS = frozenset({"flock", "fcntl"})
_WRITES = frozenset({"write", "writev", "sendto", "sendmsg", "sendmmsg"})
_EPOLL = frozenset({"epoll_wait", "epoll_pwait", "epoll_pwait2"})
_PYTHONS = ("python", "libpython", "time.")
"""The interpreter, and its module ``time`` where that is a file of its own."""
_SQLITE = "sqlite"
"""The part of the names of SQLite's own library, and of Python's module with it."""
_SLEEPS = frozenset({"nanosleep", "clock_nanosleep"})
_PATH_ARGUMENTS = {"open": 0, "openat": 1}
"""The argument with the path of calls that block on a FIFO until its other end is open (fifo(7))."""
NAMED_CALLS = frozenset(_PATH_ARGUMENTS)
"""Calls whose path the name of the wait has in it."""
_MAX_PATH = 4096
_MAX_POLL = 64
_SHOWN = 4
"""Descriptors and processes that a sentence names."""
_EVENTFD, _PIDFD = "anon_inode:[eventfd]", "anon_inode:[pidfd]"
_TIMER_ABSTIME = 1
"""The flag TIMER_ABSTIME of include/uapi/linux/time.h."""
_FOREVER = (1 << 31) - 1


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside a system call other than futex, None where it runs."""
    call = thread.syscall
    if not call or call.name == "futex":
        return None
    process = thread.process
    if call.name in _SLEEPS:
        return _sleep(thread, call)
    if call.name in ("wait4", "waitid"):
        return _child(process, call)
    if call.name in ("vfork", "clone", "clone3"):
        return _vforked(process, call)
    if call.name in ("pause", "rt_sigsuspend", "rt_sigtimedwait"):
        resource = Resource(WaitKind.SLEEP, 0, f"waits for a signal ({call.name})")
        return Wait(resource, timed=_has_timeout(call), detail=Sleep())
    if call.name in _BY_DESCRIPTOR:
        return _descriptor(process, call)
    if call.name in ("poll", "ppoll"):
        return _poll(process, call)
    if call.name in ("select", "pselect6"):
        return _select(process, call)
    if call.name in _EPOLL:
        return _epoll(process, call)
    name = f"{call.name}{_opened(process, call)}"
    return Wait(Resource(WaitKind.IO, 0, name), evidence=(f"blocked in {call.name}",))


def _opened(process: ProcessSnapshot, call: Syscall) -> str:
    """`` of /run/fifo``: what a call is about that waits for somebody to open the other end."""
    number = _PATH_ARGUMENTS.get(call.name)
    try:
        path = process.memory.cstring(call.arguments[number], _MAX_PATH) if number is not None else b""
    except GdbextError:
        return ""
    text = path.decode("utf-8", "replace")
    named = f" of {process.procfs.absolute(text)}" if path else ""
    return f"{named}{_other_end(process, call, text)}" if named else ""


def _other_end(process: ProcessSnapshot, call: Syscall, path: str) -> str:
    """The end of a named pipe for which open(2) waits."""
    if not process.procfs.is_named_pipe(path):
        return ""
    writes = call.arguments[_PATH_ARGUMENTS[call.name] + 1] & os.O_ACCMODE == os.O_WRONLY
    return f", a named pipe that no process has opened for {'reading' if writes else 'writing'}"


def uninterruptible(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that the kernel lets nobody wake (state D), and that no system call shows. Who is in that
    state for a moment only (a page that is read, the lock of the memory map) runs; so does who was frozen meanwhile."""
    side = thread.kernel_side
    if thread.kernel_state != "D" or (side and (not side.stands or side.is_frozen)):
        return None
    resource = Resource(WaitKind.IO, 0, "the kernel (uninterruptible sleep)")
    return Wait(resource, evidence=("the kernel's state of the thread is D",))


def unknown_futex(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside futex(2) for what no recogniser knows."""
    futex = any_futex_wait(thread.syscall)
    if not futex:
        return None
    evidence = f"futex {futex.address:#x} waited for with value {futex.value:#x}; no known function is above it"
    resource = Resource(WaitKind.FUTEX, futex.address, _futex_name(thread, futex.address))
    external = futex.shared and thread.is_shared(futex.address)
    return Wait(resource, timed=futex.timed, evidence=(evidence,), external=external)


def _futex_name(thread: ThreadSnapshot, address: int) -> str:
    """``word, of libmine.so``: the variable, where it has a name, and the library that waits for it by syscall(2)."""
    user = thread.module_name(len(thread.inner_libc_levels))
    return ", of ".join(filter(None, (thread.process.name_at(address), user)))


def _sleep(thread: ThreadSnapshot, call: Syscall) -> Wait:
    return _for_database(thread, _slept(thread, call))


_INNERMOST = 2
"""Native frames from which on libc's function has been left, or called something else."""


def between_sleeps(thread: ThreadSnapshot) -> Wait | None:
    """The sleep of a thread that has just woken, or is about to sleep: it is still in libc's function, and Python's
    call of ``time.sleep`` is on its stack."""
    if thread.first(FunctionTag.SLEEPS, within=_INNERMOST) is None:
        return None
    return _sleeps(None) if thread.process.python.asked_to_sleep(thread.tid) is not None else None


def _for_database(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The sleep of SQLite between two attempts to lock its file (os_unix.c, sqlite3_busy_timeout), with who has it."""
    procfs = thread.process.procfs
    if not procfs or _SQLITE not in _caller(thread):
        return wait
    found = procfs.peers.locked_elsewhere()
    if not found:
        own = procfs.peers.locked_here()
        ours = f"{own}, which this process itself has locked, by another connection" if own else "a database"
        return wait.with_detail(Sleep(Polled(looks_for=f"the lock of {ours}"), seconds=wait.detail.seconds))
    path, peer = found
    polled = PolledFile(peer, looks_for=f"the lock of {path}, {peer.text}")
    return wait.with_detail(Sleep(polled, seconds=wait.detail.seconds), f"/proc/locks: {path}")


def _slept(thread: ThreadSnapshot, call: Syscall) -> Wait:
    process = thread.process
    seconds = _timespec(process, call.arguments[0] if call.name == "nanosleep" else call.arguments[2])
    if call.name == "nanosleep" or not call.arguments[1] & _TIMER_ABSTIME:
        return _sleeps(seconds, library=_caller(thread))
    now = process.procfs.clock(call.arguments[0])
    if seconds is not None and now is not None:
        left = seconds - now
        return _sleeps(left, f" ({span(max(left, 0))} s more)")
    return _sleeps(process.python.asked_to_sleep(thread.tid))


def _caller(thread: ThreadSnapshot) -> str:
    """The library that called libc to sleep, "" for Python's own ``time.sleep``."""
    level = thread.inner_libc_levels[-1] + 1 if thread.inner_libc_levels else 0
    name = thread.module_name(level)
    return "" if name.startswith(_PYTHONS) else name


def _sleeps(seconds: float | None, left: str = "", library: str = "") -> Wait:
    text = left or (f" ({span(seconds)} s)" if seconds is not None else "")
    text += f" in {library}" if library else ""
    return Wait(Resource(WaitKind.SLEEP, 0, f"sleeps{text}"), timed=True, detail=Sleep(seconds=seconds))


def span(seconds: float) -> str:
    """Seconds for people: three digits, and all of a long time."""
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _timespec(process: ProcessSnapshot, pointer: int, parts: int = 10**9) -> float | None:
    """The seconds of a struct timespec or, with ``parts`` 10**6, timeval; None for a null pointer or nonsense."""
    raw = process.memory.try_read(pointer, 16) if pointer else b""
    if not raw:
        return None
    seconds, rest = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")
    return seconds + rest / parts if seconds < 1 << 40 and rest < parts else None


def _child(process: ProcessSnapshot, call: Syscall) -> Wait:
    pid = _signed32(call.arguments[0] if call.name == "wait4" else call.arguments[1])
    which = {0: "any", 1: "one", 2: "group"}.get(call.arguments[0] & 0xFF, "any") if call.name == "waitid" else ""
    children = process.procfs.children()
    if pid > 0 and which in ("", "one"):
        child = children.get(pid, ChildProcess(pid))
        resource = Resource(WaitKind.CHILD_PROCESS, 0, f"child process {child.label}")
        return Wait(resource, detail=OtherEnd(children=(child,)))
    known = tuple(children[pid] for pid in sorted(children))
    names = ", ".join(child.label for child in known[:_SHOWN])
    text = f"any child process ({names})" if names else "any child process"
    return Wait(Resource(WaitKind.CHILD_PROCESS, 0, text), detail=OtherEnd(children=known))


def _vforked(process: ProcessSnapshot, call: Syscall) -> Wait:
    """The wait of a vfork's parent: for the child to execute a program, or to end (vfork(2), clone(2))."""
    children = process.procfs.children()
    own = process.procfs.process(process.pid).command
    known = tuple(children[pid] for pid in sorted(children) if children[pid].command == own)[-1:]
    name = "".join(f" {child.label}{'' if child.state else f', {child.doing},'}" for child in known)
    text = f"child process{name} to execute a program or to end ({call.name})"
    evidence = (f"blocked in {call.name}: the parent sleeps until the child needs its memory no more",)
    return Wait(Resource(WaitKind.CHILD_PROCESS, 0, text), evidence=evidence, detail=OtherEnd(children=known))


_AF_UNIX, _SOCKADDR_UN = b"\1\0", 110
"""The family and the size of a struct sockaddr_un (unix(7))."""


def _descriptor(process: ProcessSnapshot, call: Syscall) -> Wait:
    fd = _signed32(call.arguments[0])
    return _on_descriptors(process, call, [fd], evidence=(f"blocked in {call.name}({fd}, …)",))


def _on_descriptors(
    process: ProcessSnapshot,
    call: Syscall,
    fds: Sequence[int],
    limit: str = "",
    otherwise: str = "",
    timed: bool = False,
    evidence: tuple[str, ...] = (),
) -> Wait:
    """A wait for any of some descriptors; ``otherwise`` is said where there are none."""
    ends = [(fd, _peer(process, call, fd)) for fd in fds[:_SHOWN]]
    text = "; ".join(_fd(process, fd, peer) for fd, peer in ends) or otherwise
    resource = Resource(WaitKind.IO, 0, f"{call.name} on {text}{limit}")
    children = tuple(each for _, peer in ends if peer for each in peer.processes)
    peer = next((peer for _, peer in ends if peer), None)
    return Wait(resource, timed=timed, evidence=evidence, detail=OtherEnd(peer, children))


def _peer(process: ProcessSnapshot, call: Syscall, fd: int) -> Peer | None:
    """The other end of a descriptor, as far as the system tells it."""
    if call.name in _LOCKS:
        return process.procfs.peers.lock_holder(fd, call.name == "flock")
    link = process.procfs.descriptor(fd)
    if link == _PIDFD:
        return process.procfs.peers.process_of(fd)
    name = _unix_name(process, call) if call.name == "connect" else ""
    if name:
        return process.procfs.peers.connecting_to(name) or process.procfs.peers.of(link, call_writes=False)
    return process.procfs.peers.of(link, call.name in _WRITES)


def _unix_name(process: ProcessSnapshot, call: Syscall) -> str:
    """The name in the struct sockaddr_un that connect(2) is given; "" for other families. The kernel shows an abstract
    one with "@" in place of its NUL (net/unix/af_unix.c)."""
    raw = process.memory.try_read(call.arguments[1], min(call.arguments[2] & 0xFFFFFFFF, _SOCKADDR_UN))
    if raw[:2] != _AF_UNIX:
        return ""
    path = raw[2:]
    named = b"@" + path[1:].replace(b"\0", b"@") if path[:1] == b"\0" else path.partition(b"\0")[0]
    return named.decode("utf-8", "replace")


def _fd(process: ProcessSnapshot, fd: int, peer: Peer | None) -> str:
    """``fd 5 (pipe:[77])``, with what is at the other end where it is known."""
    text = f"fd {fd}" if fd else "standard input (fd 0)"
    what = process.procfs.descriptor(fd)
    if what:
        text += f" ({what})"
    text = f"{text}, {peer.text}" if peer and peer.text else text
    if peer and peer.is_listening:
        return f"{text}{_failed_children(process)}"
    is_left = peer is not None and peer.own and not peer.is_queued and what.startswith(("pipe:", "socket:"))
    return f"{text}{ended_children(process)}" if is_left else text


def _failed_children(process: ProcessSnapshot) -> str:
    """The children of which nobody has learned yet that they failed: one of them may be who should have connected."""
    children = process.procfs.children()
    found = {pid: f"{each.name}, {each.ending}" for pid, each in children.items() if each.has_failed}
    return _have_ended(found)


def _have_ended(found: Mapping[int, str]) -> str:
    told = [f"{pid} ({what.strip(', ')})" for pid, what in sorted(found.items())][:_SHOWN]
    return f"; of its processes {', '.join(told)} {'has' if len(told) == 1 else 'have'} ended" if told else ""


def ended_children(process: ProcessSnapshot, only_failed: bool = False) -> str:
    """``; of its processes 7 (producer, exit status 1) has ended``: one of them may be who should have written.
    ``only_failed``: of those that were waited for, as a pool's are whose work is done, only the ones that failed."""
    children = process.procfs.children()
    found = {pid: f"{each.name}, {each.ending}" for pid, each in children.items() if each.state is ProcessState.ENDED}
    for each in process.python.ended_processes():
        if only_failed and not each.status:
            continue
        how = f"killed by {signal_name(-each.status)}" if each.status < 0 else f"exit status {each.status}"
        found[each.pid] = f"{each.name}, {how}"
    text = _have_ended(found)
    is_bus = any(what.endswith("SIGBUS") for what in found.values())
    full = process.procfs.machine.full_file_systems() if is_bus else ()
    return f"{text} ({' and '.join(full)} {'is' if len(full) == 1 else 'are'} full)" if full else text


def _poll(process: ProcessSnapshot, call: Syscall) -> Wait:
    """struct pollfd: fd (int), events, revents (short)."""
    address, count = call.arguments[0], min(call.arguments[1], _MAX_POLL)
    raw = process.memory.try_read(address, count * 8) if count else b""
    fds = [int.from_bytes(raw[at : at + 4], "little", signed=True) for at in range(0, len(raw), 8)]
    if call.name == "poll":
        milliseconds = _signed32(call.arguments[2])
        timed = milliseconds >= 0
        seconds: float | None = milliseconds / 1000
        limit = f" for at most {milliseconds} ms" if timed else ""
    else:
        timed, seconds = call.arguments[2] != 0, _timespec(process, call.arguments[2])
        limit = " with a timeout" if timed else ""
    if not fds and timed:
        return _sleeps(seconds)
    used = [fd for fd in fds[:_SHOWN] if fd >= 0]
    return _on_descriptors(process, call, used, limit, otherwise="no descriptor", timed=timed)


def _select(process: ProcessSnapshot, call: Syscall) -> Wait:
    fds = sorted(set().union(*(_set_bits(process, pointer, call.arguments[0]) for pointer in call.arguments[1:4])))
    timed = call.arguments[4] != 0
    if not fds and timed:
        return _sleeps(_timespec(process, call.arguments[4], 10**6 if call.name == "select" else 10**9))
    return _on_descriptors(process, call, fds, otherwise="descriptors that cannot be read", timed=timed)


def _set_bits(process: ProcessSnapshot, pointer: int, count: int) -> set[int]:
    size = (min(count, 1024) + 7) // 8
    raw = process.memory.try_read(pointer, size) if pointer else b""
    return {at for at in range(size * 8) if raw[at // 8] >> (at % 8) & 1} if raw else set()


def _epoll(process: ProcessSnapshot, call: Syscall) -> Wait:
    fd = _signed32(call.arguments[0])
    timed = call.arguments[3] != 0 if call.name == "epoll_pwait2" else _signed32(call.arguments[3]) >= 0
    watched = [each for each in _watched(process, call, fd) if not each[1] or not each[1].own]
    if not watched:
        return _on_descriptors(process, call, [fd], timed=timed)
    text = "; ".join(_fd(process, each, peer) for each, peer in watched[:_SHOWN])
    more = f" and {len(watched) - _SHOWN} more" if len(watched) > _SHOWN else ""
    children = tuple(each for _, peer in watched if peer for each in peer.processes)
    peer = next((peer for _, peer in watched if peer), None)
    resource = Resource(WaitKind.IO, 0, f"{call.name} on fd {fd}, which watches {text}{more}")
    return Wait(resource, timed=timed, detail=OtherEnd(peer, children))


def _watched(process: ProcessSnapshot, call: Syscall, fd: int) -> Sequence[tuple[int, Peer | None]]:
    """The descriptors in an epoll set with their other ends; those whose other end is the process itself only wake
    its loop, as an eventfd does."""
    watched = (each for each in process.procfs.peers.watched(fd) if process.procfs.descriptor(each) != _EVENTFD)
    return [(each, _peer(process, call, each)) for each in watched]


def _has_timeout(call: Syscall) -> bool:
    return call.name == "rt_sigtimedwait" and call.arguments[2] != 0


def _signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value > _FOREVER else value
