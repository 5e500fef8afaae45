"""Supervision: reads that the kernel may never answer are done by a child of ours, which can be abandoned.

/proc/PID/{cmdline,environ,maps,mem} and ptrace wait for locks that a process in the kernel may hold forever; reading a
file of a dead server never returns. Only SIGKILL, and at times not even that, ends such a wait. So if a thread of the
process is in uninterruptible sleep, or it uses file systems that need a server, a child examines the process. Once the
kernel has blocked it for two seconds it is abandoned, and another child reports what is known without the process's
memory.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gdbext.engine.arch import architectures
from gdbext.engine.numbers import number
from gdbext.engine.targets.live import proc_checks
from gdbext.engine.targets.live.thread_motion import SleepPlace, kernel_side, sleep_place, syscall_text
from gdbext.engine.targets.system import proc_files
from gdbext.errors import TargetError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STUCK_SECONDS = 2.0
"""Seconds after which a child that the kernel blocks is abandoned."""
SECOND_SECONDS = 1.5
"""The same for the second child, which reads less."""
ANSWER_SECONDS = 0.7
"""The same for a child that touches one file."""
_STEP = 0.05
_PIPE_SIZE = 1 << 16


def may_block_readers(pid: int) -> bool:
    """The kernel may block readers of this process: one of its threads is in uninterruptible sleep, or it uses a file
    system that needs a server."""
    with suppress(OSError):
        return "D" in proc_checks.thread_states(pid).values() or proc_checks.uses_servers(pid)
    return False


def check_can_stop(pid: int) -> None:
    """Raises TargetError if a debugger cannot stop the process: it does not exist, or one of its threads sleeps
    uninterruptibly, so that the debugger would wait for it forever, and stay its tracer."""
    architecture = architectures.own()
    if not architecture:
        return
    proc_checks.check_exists(pid)
    try:
        stats = proc_checks.thread_stats(pid)
    except OSError as error:
        raise TargetGone.of(pid) from error
    for tid, (state, name) in stats.items():
        side = kernel_side(pid, tid, state, syscall_text(pid, tid), architecture)
        if not side or not (side.is_frozen or side.cannot_stop):
            continue
        if side.is_frozen:
            what = f"its cgroup is frozen, and thread {tid} ({name}) sleeps there"
            why = "a debugger would wait for it until the cgroup is thawed"
        else:
            what = f"thread {tid} ({name}) sleeps uninterruptibly ({side.location})"
            why = "a debugger would wait for it without end, and no other tool could examine the process meanwhile"
        help = f"use: --debugger none, which needs no stop, as in: scripts/dispatch -p {pid}"
        raise TargetError(f"process {pid} cannot be stopped: {what}", why=why, help=help)


def run_in_child(work: Callable[[], bytes], seconds: float) -> bytes | None:
    """Run ``work`` in a child of ours; its result, b"" if it failed, None once the kernel has blocked the child for
    ``seconds``."""

    def run(into: int) -> None:
        """The work of the child: write the result of ``work`` into the pipe."""
        # the child may be abandoned: it must keep no terminal and no pipe of a reader of our output
        null = os.open("/dev/null", os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        _write_all(into, work())

    child, output = _fork(run)
    try:
        return _receive(child, output, seconds)
    finally:
        os.close(output)
        _kill(child)


def _fork(run: Callable[[int], None]) -> tuple[int, int]:
    """Start a child of ours that calls ``run`` with the fd of a pipe, and exits: (its PID, our end of the pipe). Its
    exit status is 1 if that fails."""
    output, into = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(output)
            run(into)
            status = 0
        finally:
            os._exit(status)
    os.close(into)
    return child, output


def _write_all(into: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(into, rest) :]


def _receive(child: int, output: int, seconds: float) -> bytes | None:
    """Everything that the child writes to the pipe ``output`` until it exits; None once the kernel has blocked it, at
    one place, for that many seconds."""
    data, place, since, has_exited = bytearray(), SleepPlace(call="", ran=""), time.monotonic(), False
    while True:
        if select.select([output], [], [], 0 if has_exited else _STEP)[0]:
            piece = os.read(output, _PIPE_SIZE)
            if not piece:
                return bytes(data)
            data += piece
            continue
        if has_exited:  # and an abandoned child of its own has the pipe
            return bytes(data)
        has_exited = _has_exited(child)
        now = sleep_place(child, child)
        if now != place or not _is_blocked(child, now.call):
            place, since = now, time.monotonic()
        elif time.monotonic() - since >= seconds and not has_exited:
            return None


def _has_exited(child: int) -> bool:
    """Our child has exited; it is not collected."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _is_blocked(child: int, call: str) -> bool:
    """The kernel blocks our child: it sleeps uninterruptibly, waits for a file server, or for ptrace. ``call``: see
    SleepPlace."""
    architecture = architectures.own()
    try:
        state = proc_checks.thread_state(child, child)
    except OSError:
        return False
    if state == "D" or not architecture:
        return state == "D"
    side = kernel_side(child, child, state, call, architecture)
    name = architecture.syscall_names.get(number(call.partition(" ")[0]) or 0, "")
    return name == "ptrace" or bool(side and side.is_served)


def _kill(child: int) -> None:
    """Kill our child, and collect it unless the kernel blocks even a killed process."""
    deadline = time.monotonic() + 4 * _STEP
    while time.monotonic() < deadline:
        try:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return  # the debugger whose process we are in has collected it
        os.kill(child, signal.SIGKILL)
        time.sleep(0.001)


def stream_from_child(produce: Callable[[], Iterator[bytes]], size: int) -> Iterator[bytes]:
    """Run ``produce`` in a child of ours, on another CPU, while we process what it yields: pieces of whole records of
    ``size`` bytes. If the child fails, ``produce`` runs here and yields everything once more. Only for a process of one
    thread."""
    pieces = _child_stream(produce, size)
    next(pieces)
    return pieces


def _child_stream(produce: Callable[[], Iterator[bytes]], size: int) -> Iterator[bytes]:
    """As ``stream_from_child``, but begins with an empty piece, when the child has been started."""

    def run(into: int) -> None:
        for piece in produce():
            _write_all(into, piece)

    child, output = _fork(run)
    result, rest = None, b""
    try:
        yield b""
        while data := os.read(output, _PIPE_SIZE):
            rest += data
            whole = len(rest) - len(rest) % size
            yield rest[:whole]
            rest = rest[whole:]
        result = os.waitpid(child, 0)[1]
    finally:
        os.close(output)
        if result is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if result:
        yield from produce()


def thread_states_text(pid: int) -> str:
    """The states of at most four threads of a process, for people."""
    try:
        states = proc_checks.thread_stats(pid)
    except OSError:
        return "it has exited"
    return ", ".join(f"thread {tid} ({name}): state {state}" for tid, (state, name) in sorted(states.items())[:4])


def read_proc_file(pid: int, name: str, beginning: int = 0) -> bytes:
    """A file of /proc/PID that needs the lock of the process's memory: ``environ``, ``maps``; only the first
    ``beginning`` bytes if not 0. Raises OSError: it cannot be read, is longer than its limit (EFBIG), or the kernel
    does not answer within half a second."""

    def read() -> bytes:
        if beginning:
            return proc_files.head(f"/proc/{pid}/{name}", beginning)
        return proc_files.read(f"/proc/{pid}/{name}")

    if "D" not in proc_checks.thread_states(pid).values():
        return read()
    data = run_in_child(read, 0.5)
    if not data:
        raise TimeoutError(f"/proc/{pid}/{name} is not answered")
    return data
