"""Supervision: a look that the kernel may never answer is done by a child of ours, which can be left behind.

/proc/PID/{cmdline,environ,maps,mem} and ptrace wait for locks that a process in the kernel may keep for ever; a file of
a dead server is never read. No signal but SIGKILL, and at times not even that, ends such a wait. So where a thread of
the process is in uninterruptible sleep, or file systems are mounted that need a server, a child looks. Once the kernel
has not let it go on for two seconds it is given up, and another one says what can be said without the process's memory.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

from gdbext.engine.arch import architectures
from gdbext.engine.targets.live import proc_checks
from gdbext.engine.targets.live.thread_motion import SleepPlace, call_of, kernel_side, place_of
from gdbext.engine.targets.system import proc_files
from gdbext.errors import TargetError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STUCK_SECONDS = 2.0
"""Seconds after which a child that the kernel does not let go on is given up."""
SECOND_SECONDS = 1.5
"""The same of the second child, which reads less."""
ANSWER_SECONDS = 0.7
"""The same of a child that touches one file."""
_STEP = 0.05
_PIPE_SIZE = 1 << 16


def is_suspect(pid: int) -> bool:
    """The kernel may keep whoever reads this process: one of its threads is in uninterruptible sleep, or it uses a file
    system that needs a server to answer."""
    try:
        states = proc_checks.thread_states(pid)
    except OSError:
        return False
    return "D" in states.values() or proc_checks.uses_servers(pid)


def check_can_stop(pid: int) -> None:
    """A debugger can stop the process. Raises TargetError: one of its threads sleeps uninterruptibly, so that a
    debugger would wait for it without end, and stay its tracer; or there is none, or it has ended."""
    architecture = architectures.own()
    if not architecture:
        return
    proc_checks.check_exists(pid)
    try:
        stats = proc_checks.thread_stats(pid)
    except OSError as error:
        raise TargetGone.of(pid) from error
    for tid, (state, name) in stats.items():
        side = kernel_side(pid, tid, state, call_of(pid, tid), architecture)
        if side and side.is_frozen:
            raise TargetError(
                f"process {pid} cannot be stopped: its control group is frozen, and thread {tid} ({name}) sleeps there",
                why="a debugger would wait for it until the group is thawed",
                help=f"use: --debugger none, which needs no stop, as in: scripts/dispatch -p {pid}",
            )
        if side and side.cannot_stop:
            raise TargetError(
                f"process {pid} cannot be stopped: thread {tid} ({name}) sleeps uninterruptibly ({side.where})",
                why="a debugger would wait for it without end, and nobody else could look at the process meanwhile",
                help=f"use: --debugger none, which needs no stop, as in: scripts/dispatch -p {pid}",
            )


def by_child(look: Callable[[], bytes], seconds: float) -> bytes | None:
    """Have a child of ours do ``look``; its result, b"" where it failed, None once the kernel has kept the child for
    that many seconds."""
    output, into = os.pipe()
    child = os.fork()
    if not child:
        os.close(output)
        _tell(look, into)
    os.close(into)
    try:
        return _received(child, output, seconds)
    finally:
        os.close(output)
        _end(child)


def _tell(look: Callable[[], bytes], into: int) -> None:
    """Look, write the outcome into a pipe, and end this process. It may be left behind, and keeps neither terminal nor
    pipe of whoever reads what we say."""
    try:
        nothing = os.open("/dev/null", os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        data = memoryview(look())
        while data:
            data = data[os.write(into, data) :]
    finally:
        os._exit(0)


def _received(child: int, output: int, seconds: float) -> bytes | None:
    data, kept, since = bytearray(), SleepPlace("", ""), time.monotonic()
    while True:
        ready, _, _ = select.select([output], [], [], _STEP)
        if ready:
            found = os.read(output, _PIPE_SIZE)
            if not found:
                return bytes(data)
            data += found
            continue
        if _has_ended(child):  # and a child of its own has the pipe, which was left behind
            return bytes(data + _rest(output))
        place = place_of(child, child)
        if place != kept or not _is_kept(child, place.call):
            kept, since = place, time.monotonic()
        elif time.monotonic() - since >= seconds:
            return None


def _rest(output: int) -> bytes:
    """Everything that was written between our last look and its end."""
    data = bytearray()
    while select.select([output], [], [], 0)[0]:
        found = os.read(output, _PIPE_SIZE)
        if not found:
            break
        data += found
    return bytes(data)


def _has_ended(child: int) -> bool:
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _is_kept(child: int, call: str) -> bool:
    """The kernel does not let our child go on: it sleeps uninterruptibly, waits for a file server, or for ptrace."""
    architecture = architectures.own()
    try:
        state = proc_checks.thread_state(child, child)
    except OSError:
        return False
    if state == "D" or not architecture:
        return state == "D"
    side = kernel_side(child, child, state, call, architecture)
    number = call.partition(" ")[0]
    waits_for_ptrace = number.isdecimal() and architecture.syscall_names.get(int(number)) == "ptrace"
    return waits_for_ptrace or bool(side and side.is_served)


def _end(child: int) -> None:
    """Kill our child, and collect it unless the kernel keeps even a process that is killed."""
    deadline = time.monotonic() + 4 * _STEP
    while time.monotonic() < deadline:
        try:
            found, _ = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            return  # a debugger, whose process we are in, has collected it
        if found:
            return
        os.kill(child, signal.SIGKILL)
        time.sleep(0.001)


def begun_by_child(produce: Callable[[], Iterator[bytes]], size: int) -> Iterator[bytes]:
    """Start a child of ours that makes what ``produce`` gives, on another processor, while we work on what came; in
    pieces of whole records of ``size`` bytes. Where it does not come to its end, all is made here, once more. Only for
    a process of one thread."""
    pieces = _streamed_by_child(produce, size)
    next(pieces)
    return pieces


def _streamed_by_child(produce: Callable[[], Iterator[bytes]], size: int) -> Iterator[bytes]:
    """The pieces, and first one of no bytes: the child has begun then."""
    output, into = os.pipe()
    child = os.fork()
    if not child:
        os.close(output)
        _stream(produce, into)
    os.close(into)
    status, rest = None, b""
    try:
        yield b""
        while piece := os.read(output, _PIPE_SIZE):
            rest += piece
            whole = len(rest) - len(rest) % size
            yield rest[:whole]
            rest = rest[whole:]
        status = os.waitpid(child, 0)[1]
    finally:
        os.close(output)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if status:
        yield from produce()


def _stream(produce: Callable[[], Iterator[bytes]], into: int) -> None:
    """Write what ``produce`` gives into a pipe, and end this process: with 0 where that was all of it."""
    status = 1
    try:
        for piece in produce():
            view = memoryview(piece)
            while view:
                view = view[os.write(into, view) :]
        status = 0
    finally:
        os._exit(status)


def sleepers(pid: int) -> str:
    """The states of the threads of a process, in words."""
    try:
        states = proc_checks.thread_stats(pid)
    except OSError:
        return "it has ended"
    return ", ".join(f"thread {tid} ({name}): state {state}" for tid, (state, name) in sorted(states.items())[:4])


READ_SECONDS = 0.5
"""The same of a child that reads one file."""


def read_file_of(pid: int, name: str, beginning: int = 0) -> bytes:
    """A file of /proc/PID that waits for the lock of its memory: ``environ``, ``maps``; only so many bytes of it where
    its ``beginning`` is enough. Raises OSError: it cannot be read, is longer than its limit (EFBIG), or the kernel does
    not answer."""

    def read() -> bytes:
        if beginning:
            return proc_files.head(f"/proc/{pid}/{name}", beginning)
        return proc_files.read(f"/proc/{pid}/{name}")

    if "D" not in proc_checks.thread_states(pid).values():
        return read()
    found = by_child(read, READ_SECONDS)
    if not found:
        raise TimeoutError(f"/proc/{pid}/{name} is not answered")
    return found
